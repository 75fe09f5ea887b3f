/** Saves data as a file. SECURITY: callers pass a type that the browser never renders as a page. */
export function download(data: Blob, name: string): void {
  const url = URL.createObjectURL(data)
  const anchor = document.createElement('a')
  anchor.href = url
  anchor.download = name
  anchor.click()
  URL.revokeObjectURL(url)
}
