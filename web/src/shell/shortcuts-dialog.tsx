import { allShortcuts } from '../browser/keyboard.ts'
import { Button } from '../components/button.tsx'
import { Dialog } from '../components/dialog.tsx'

const ENTER = { keys: 'Enter', label: 'Open the focused item' }

/** The keyboard shortcuts of the current page. */
export function ShortcutsDialog({ onClose }: { readonly onClose: () => void }) {
  const list = [...new Map([...allShortcuts(), ENTER].map((shortcut) => [shortcut.keys, shortcut])).values()]
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl className="shortcuts">
        {list.map(({ keys, label }) => (
          <div key={keys}>
            <dt>
              {keys.split(', ').map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{label}</dd>
          </div>
        ))}
      </dl>
      <div className="buttons">
        <Button onClick={onClose} shortcut="Esc">
          Close
        </Button>
      </div>
    </Dialog>
  )
}
