// Converts a title into a slug for a file name or URL.
const title = process.argv[2] ?? ''
const slug = title
  .normalize('NFKD')
  .replace(/\p{M}+/gu, '')
  .toLowerCase()
  .replace(/[^a-z0-9]+/g, '-')
  .replace(/^-|-$/g, '')
console.log(JSON.stringify(slug))
