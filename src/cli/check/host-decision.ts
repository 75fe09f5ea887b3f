import { outwardLink } from '../../host/files/outward-link.ts'
import type { Decision } from '../../model/decision.ts'

/** SECURITY: what is `allow` runs on the host, so it must not follow a link out of the workspace; else it is `sandbox`. */
export function withoutLinks(
  decision: Decision,
  line: string,
  location: { readonly workspace: string; readonly cwd: string },
): Decision {
  if (decision.action !== 'allow') return decision
  // Redirections are not among the arguments, so the words of the line itself count too.
  const words = [
    ...decision.commands.flatMap(({ argv }) => argv.slice(1)),
    ...line.split(/[\s;|&<>(){}"'`\\]+/),
  ]
  const link = outwardLink(words, location)
  if (link === undefined) return decision
  return {
    ...decision,
    action: 'sandbox',
    reason: `\`${link}\` is or contains a symbolic link that leads out of the workspace`,
  }
}
