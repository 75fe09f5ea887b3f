import { type ReactNode, useState } from 'react'
import type { Page as ItemPage } from '../../../../src/client/types.ts'
import { Button } from '../../components/button.tsx'
import { ConfirmDialog } from '../../components/confirm-dialog.tsx'
import { ErrorMessage, Loading, Page } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { type Column, Table } from '../../components/table.tsx'
import { attempt } from '../../components/toasts.tsx'
import { useMayCreate } from '../../data/permissions.ts'
import type { Loaded } from '../../data/use-load.ts'
import { capitalize, safeLine } from '../../format.ts'

type Resource = { readonly id: string }

/** What a page needs to know about its kind of resource. */
export type ResourceKind<T extends Resource> = {
  /** In the plural, as the title of the page. */
  readonly title: string
  readonly noun: string
  readonly columns: readonly Column[]
  readonly nameOf: (item: T) => string
  /** The cells of a row, one per column. */
  readonly cells: (item: T) => ReactNode
  /** What happens when it is deleted. */
  readonly consequence: string
  readonly empty: ReactNode
}

/** Every resource of a kind in a table; with the scope `create` they can be created and deleted. */
export function ResourcePage<T extends Resource>(props: {
  readonly kind: ResourceKind<T>
  readonly loaded: Loaded<ItemPage<T>>
  readonly remove: (item: T) => Promise<void>
  /** Opens the dialog that creates one. */
  readonly onCreate?: () => void
  readonly createLabel?: string
  /** More buttons of a row. */
  readonly actions?: (item: T) => ReactNode
  /** Dialogs and progress. */
  readonly children?: ReactNode
}) {
  const { kind, loaded } = props
  const mayCreate = useMayCreate()
  const [removing, setRemoving] = useState<T | undefined>(undefined)
  return (
    <Page
      title={kind.title}
      aside={
        mayCreate &&
        props.onCreate && (
          <Button tone="primary" onClick={props.onCreate}>
            {props.createLabel ?? `Create ${kind.noun}…`}
          </Button>
        )
      }
    >
      <ErrorMessage text={loaded.error} />
      {props.children}
      <Panel title={kind.title}>
        <ResourceTable
          kind={kind}
          items={loaded.value?.items}
          {...(mayCreate && { actions: props.actions, onRemove: setRemoving })}
        />
      </Panel>
      {removing && (
        <RemoveDialog
          kind={kind}
          item={removing}
          remove={props.remove}
          onRemoved={loaded.reload}
          onClose={() => setRemoving(undefined)}
        />
      )}
    </Page>
  )
}

function ResourceTable<T extends Resource>(props: {
  readonly kind: ResourceKind<T>
  readonly items: readonly T[] | undefined
  readonly actions?: ((item: T) => ReactNode) | undefined
  readonly onRemove?: (item: T) => void
}) {
  const { kind, items, onRemove } = props
  if (!items) return <Loading />
  if (items.length === 0) return kind.empty
  const columns = onRemove ? [...kind.columns, { name: 'Actions', isHidden: true }] : kind.columns
  return (
    <Table label={kind.title} columns={columns}>
      {items.map((item) => (
        <tr key={item.id}>
          {kind.cells(item)}
          {onRemove && (
            <td className="row-actions">
              {props.actions?.(item)}
              <Button tone="danger" onClick={() => onRemove(item)}>
                Delete…<span className="hidden"> {safeLine(kind.nameOf(item))}</span>
              </Button>
            </td>
          )}
        </tr>
      ))}
    </Table>
  )
}

function RemoveDialog<T extends Resource>(props: {
  readonly kind: ResourceKind<T>
  readonly item: T
  readonly remove: (item: T) => Promise<void>
  readonly onRemoved: () => void
  readonly onClose: () => void
}) {
  const { kind, item, onClose } = props
  const remove = async (): Promise<void> => {
    if (!(await attempt(() => props.remove(item), `${capitalize(kind.noun)} deleted`))) return
    onClose()
    props.onRemoved()
  }
  return (
    <ConfirmDialog
      title={`Delete this ${kind.noun}?`}
      confirmLabel="Delete"
      tone="danger"
      onClose={onClose}
      onConfirm={remove}
    >
      <p>
        <strong>{safeLine(kind.nameOf(item))}</strong>: {kind.consequence}
      </p>
    </ConfirmDialog>
  )
}
