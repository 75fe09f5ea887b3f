import { useState } from 'react'
import type { SettingInfo } from '../../../../src/client/types.ts'
import { Badge } from '../../components/badge.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { TextField } from '../../components/fields.tsx'
import { ErrorMessage, Loading, Page } from '../../components/page.tsx'
import { type Column, Table } from '../../components/table.tsx'
import { useClient } from '../../data/live-context.ts'
import { useLoad } from '../../data/use-load.ts'
import { safeLine } from '../../format.ts'

const COLUMNS: readonly Column[] = [
  { name: 'Setting' },
  { name: 'Value' },
  { name: 'Meaning', className: 'wide-only' },
]

/** Every setting of the configuration file. It is changed in the file, or on the Policy page. */
export function Settings() {
  const client = useClient()
  const { value, error } = useLoad('settings', () => client.settings())
  const [search, setSearch] = useState('')
  const words = search.trim().toLowerCase()
  const found = value?.items.filter(
    ({ name, description }) => words === '' || `${name} ${description}`.toLowerCase().includes(words),
  )
  return (
    <Page title="Settings">
      <ErrorMessage text={error} />
      {!value && !error && <Loading text="Loading settings…" />}
      {value && (
        <p className="dim note">
          From <code>{safeLine(value.file ?? 'the defaults')}</code>. Options of the command line and
          variables of the environment take precedence.
        </p>
      )}
      {value && (
        <TextField
          label="Search settings"
          type="search"
          value={search}
          onChange={setSearch}
          hideLabel
          placeholder="Search settings"
        />
      )}
      {found?.length === 0 && <EmptyState title="No setting matches" />}
      {found && found.length > 0 && (
        <Table label="Settings" columns={COLUMNS}>
          {found.map((setting) => (
            <SettingRow key={setting.name} setting={setting} />
          ))}
        </Table>
      )}
    </Page>
  )
}

function SettingRow({
  setting: { name, value, configured, description },
}: {
  readonly setting: SettingInfo
}) {
  return (
    <tr>
      <td className="mono">{name}</td>
      <td>
        <code className="wrap">{valueText(value)}</code> {configured && <Badge word="set" />}
      </td>
      <td className="wide-only dim">{description.replaceAll('`', '')}</td>
    </tr>
  )
}

function valueText(value: SettingInfo['value']): string {
  if (value === null) return '–'
  return safeLine(typeof value === 'string' ? value : JSON.stringify(value))
}
