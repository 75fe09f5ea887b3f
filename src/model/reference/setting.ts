/** The path of every setting in a configuration type: `server`, `server.port`, `server.pool.size` … */
export type SettingPath<T> = {
  [K in keyof T & string]-?: K | Below<NonNullable<T[K]>, K>
}[keyof T & string]

type Below<T, P extends string> = T extends readonly (infer Item)[]
  ? Below<Item, P>
  : T extends object
    ? string extends keyof T
      ? never
      : `${P}.${SettingPath<T>}`
    : never

/** A sentence for each setting, with its default where there is one. */
export type Described<Path extends string> = Readonly<
  Record<Path, string | readonly [text: string, fallback: string | number | boolean | readonly string[]]>
>
