/** Parses TOML; throws with the line that is wrong. The parser is loaded when somebody needs it. */
export const parseToml = async (source: string): Promise<unknown> => (await import('smol-toml')).parse(source)
