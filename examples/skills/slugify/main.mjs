// Turns a title into a name for a file or an address.
const title = process.argv[2] ?? ''
const slug = title
  .normalize('NFKD')
  .replace(/\p{M}+/gu, '')
  .toLowerCase()
  .replace(/[^a-z0-9]+/g, '-')
  .replace(/^-|-$/g, '')
console.log(JSON.stringify(slug))
