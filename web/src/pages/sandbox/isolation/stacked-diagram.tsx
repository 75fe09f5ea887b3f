import type { Wall } from '../../../../../src/client/console-types.ts'
import { plural, safeLine } from '../../../format.ts'
import { type Crossing, hostCrossings, insideLines, networkCrossings } from './crossings.ts'

/** Access that points into the sandbox points down from the host and up from the network. */
const SIGNS = {
  host: { in: '↓', out: '↑', both: '↕', none: '✕' },
  network: { in: '↑', out: '↓', both: '↕', none: '✕' },
} as const

/** The isolation drawing for narrow screens: host, sandbox and network below each other. */
export function StackedDiagram({ wall, label }: { readonly wall: Wall; readonly label: string }) {
  return (
    <figure className="stacked-diagram" role="img" aria-label={label}>
      <Side name="Host" rows={hostCrossings(wall)} signs={SIGNS.host} />
      <div className="stacked-inside">
        <strong>
          {wall.backend} · {wall.level} · {plural(wall.layers.length, 'layer')}
        </strong>
        {insideLines(wall).map((line) => (
          <span key={line}>{line}</span>
        ))}
      </div>
      <Side name="Network" rows={networkCrossings(wall)} signs={SIGNS.network} />
    </figure>
  )
}

function Side(props: {
  readonly name: string
  readonly rows: readonly Crossing[]
  readonly signs: Readonly<Record<Crossing['direction'], string>>
}) {
  return (
    <div className="stacked-side">
      <strong>{props.name}</strong>
      {props.rows.map(({ text, note, direction }) => (
        <div key={`${text}${note}`} className={`stacked-row ${direction}`}>
          <span className="sign">{props.signs[direction]}</span>
          <code>{safeLine(text)}</code>
          <span className="dim">{note}</span>
        </div>
      ))}
    </div>
  )
}
