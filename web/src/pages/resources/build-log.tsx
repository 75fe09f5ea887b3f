import { useEffect, useRef, useState } from 'react'
import type { TemplateBuild } from '../../../../src/client/types.ts'
import { Badge } from '../../components/badge.tsx'
import { Loading } from '../../components/page.tsx'
import { Panel } from '../../components/panel.tsx'
import { showToast } from '../../components/toasts.tsx'
import { errorText } from '../../data/error-text.ts'
import { useClient } from '../../data/live-context.ts'
import { safeLine, safeText } from '../../format.ts'

const POLL_MS = 1000
const hasEnded = ({ status }: TemplateBuild): boolean => status === 'ready' || status === 'error'

/** The log of a build as it grows, and how the build ended. */
export function BuildLog({ id, onEnd }: { readonly id: string; readonly onEnd: () => void }) {
  const build = useBuild(id, onEnd)
  if (!build) return <Loading text="Starting the build…" />
  return (
    <Panel title={`Build of ${safeLine(build.name)}`} aside={<Badge word={build.status} />}>
      <pre className="build-log">{build.log.map(({ message }) => safeText(message)).join('\n')}</pre>
      {build.reason && (
        <p className="error" role="alert">
          {safeText(build.reason.message)}
          {build.reason.step && <span className="dim"> (step {safeLine(build.reason.step)})</span>}
        </p>
      )}
    </Panel>
  )
}

/** The build with all lines of its log so far. */
function useBuild(id: string, onEnd: () => void): TemplateBuild | undefined {
  const client = useClient()
  const [build, setBuild] = useState<TemplateBuild | undefined>(undefined)
  const end = useRef(onEnd)
  end.current = onEnd
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined
    let isCancelled = false
    const poll = async (before: TemplateBuild | undefined): Promise<void> => {
      const next = await client.templateBuild(id, before?.next ?? 0)
      if (isCancelled) return
      const grown = { ...next, log: [...(before?.log ?? []), ...next.log] }
      setBuild(grown)
      if (hasEnded(next) && next.log.length === 0) return end.current()
      timer = setTimeout(() => void poll(grown).catch(fail), POLL_MS)
    }
    const fail = (error: unknown): void => {
      if (!isCancelled) showToast(errorText(error), true)
    }
    void poll(undefined).catch(fail)
    return () => {
      isCancelled = true
      clearTimeout(timer)
    }
  }, [client, id])
  return build
}
