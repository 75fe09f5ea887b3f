import { type ReactNode, useId } from 'react'

/** What people fill in and choose. */

export function Field(props: {
  readonly label: string
  readonly value: string
  readonly onChange: (value: string) => void
  readonly placeholder?: string
  readonly hint?: ReactNode
  readonly lines?: number
  readonly mono?: boolean
  readonly type?: 'text' | 'password' | 'search'
  readonly autoFocus?: boolean
  readonly hideLabel?: boolean
  readonly onEnter?: () => void
  readonly className?: string
}) {
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
  }
  return (
    <div className={`field ${props.className ?? ''}`}>
      <label htmlFor={id} className={props.hideLabel ? 'hidden' : ''}>
        {props.label}
      </label>
      {props.lines ? (
        <textarea {...shared} rows={props.lines} onChange={(event) => props.onChange(event.target.value)} />
      ) : (
        <input
          {...shared}
          type={props.type ?? 'text'}
          onChange={(event) => props.onChange(event.target.value)}
          onKeyDown={(event) => {
            if (event.key === 'Enter' && props.onEnter) {
              event.preventDefault()
              props.onEnter()
            } else if (event.key === 'Escape') event.currentTarget.blur()
          }}
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

export function Choice<T extends string>(props: {
  readonly label: string
  readonly value: T
  readonly options: readonly (readonly [value: T, name: string])[]
  readonly onChange: (value: T) => void
  readonly hideLabel?: boolean
}) {
  const id = useId()
  return (
    <div className="field">
      <label htmlFor={id} className={props.hideLabel ? 'hidden' : ''}>
        {props.label}
      </label>
      <select id={id} value={props.value} onChange={(event) => props.onChange(event.target.value as T)}>
        {props.options.map(([value, name]) => (
          <option value={value} key={value}>
            {name}
          </option>
        ))}
      </select>
    </div>
  )
}
