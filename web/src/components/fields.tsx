import { type KeyboardEvent, type ReactNode, useId } from 'react'

/** Form fields with their labels. */

type TextFieldProps = {
  readonly label: string
  readonly value: string
  readonly onChange: (value: string) => void
  readonly placeholder?: string
  readonly hint?: ReactNode
  /** More than one line makes it a text area. */
  readonly lines?: number
  readonly mono?: boolean
  readonly type?: 'text' | 'password' | 'search' | 'number'
  /** Of a number. */
  readonly min?: number
  readonly step?: number | 'any'
  readonly autoFocus?: boolean
  readonly hideLabel?: boolean
}

export function TextField(props: TextFieldProps) {
  const id = useId()
  const shared = {
    id,
    value: props.value,
    placeholder: props.placeholder,
    spellCheck: false,
    autoComplete: 'off',
    autoCapitalize: 'off',
    autoFocus: props.autoFocus,
    className: props.mono ? 'mono' : '',
    'aria-describedby': props.hint ? `${id}-hint` : undefined,
    onChange: (event: { target: { value: string } }) => props.onChange(event.target.value),
  }
  return (
    <div className="field">
      <FieldLabel id={id} label={props.label} isHidden={props.hideLabel} />
      {props.lines ? (
        <textarea {...shared} rows={props.lines} />
      ) : (
        <input
          {...shared}
          type={props.type ?? 'text'}
          min={props.min}
          step={props.step}
          onKeyDown={blurOnEscape}
        />
      )}
      {props.hint && (
        <div className="hint" id={`${id}-hint`}>
          {props.hint}
        </div>
      )}
    </div>
  )
}

/** Escape leaves the field, so that keyboard shortcuts work again. */
function blurOnEscape(event: KeyboardEvent<HTMLInputElement>): void {
  if (event.key === 'Escape') event.currentTarget.blur()
}

function FieldLabel(props: {
  readonly id: string
  readonly label: string
  readonly isHidden: boolean | undefined
}) {
  return (
    <label htmlFor={props.id} className={props.isHidden ? 'hidden' : ''}>
      {props.label}
    </label>
  )
}

export function SearchField(props: {
  readonly value: string
  readonly onChange: (value: string) => void
  readonly label?: string
}) {
  const label = props.label ?? 'Search'
  return (
    <TextField
      label={label}
      hideLabel
      type="search"
      value={props.value}
      onChange={props.onChange}
      placeholder={`${label} (press /)`}
    />
  )
}

/** A value, its name, and the heading that it is listed under. */
export type Option<T extends string = string> = readonly [value: T, name: string, group?: string]

export function Select<T extends string>(props: {
  readonly label: string
  readonly value: T
  readonly options: readonly Option<T>[]
  readonly onChange: (value: T) => void
  readonly showLabel?: boolean
}) {
  const id = useId()
  const groups = [...new Set(props.options.map(([, , group]) => group))]
  return (
    <div className="field">
      <FieldLabel id={id} label={props.label} isHidden={!props.showLabel} />
      <select id={id} value={props.value} onChange={(event) => props.onChange(event.target.value as T)}>
        {groups.map((group) => (
          <OptionGroup
            key={group ?? ''}
            name={group}
            options={props.options.filter(([, , of]) => of === group)}
          />
        ))}
      </select>
    </div>
  )
}

function OptionGroup(props: { readonly name: string | undefined; readonly options: readonly Option[] }) {
  const options = props.options.map(([value, name]) => (
    <option value={value} key={value}>
      {name}
    </option>
  ))
  return props.name === undefined ? options : <optgroup label={props.name}>{options}</optgroup>
}

export function Checkbox(props: {
  readonly checked: boolean
  readonly onChange: () => void
  readonly children: ReactNode
}) {
  return (
    <label className="check">
      <input type="checkbox" checked={props.checked} onChange={props.onChange} />
      <span>{props.children}</span>
    </label>
  )
}
