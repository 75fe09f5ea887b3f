/** Parses TOML; throws with the invalid line. The parser is loaded at first use. */
export const parseToml = async (source: string): Promise<unknown> => (await import('smol-toml')).parse(source)
