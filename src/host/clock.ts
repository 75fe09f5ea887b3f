/** Milliseconds on the clock that nobody can set. (The global `performance` costs milliseconds at its first use.) */
export function monotonicMs(): number {
  const [seconds, nanoseconds] = process.hrtime()
  return seconds * 1000 + nanoseconds / 1e6
}
