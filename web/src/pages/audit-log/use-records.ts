import { useCallback, useEffect, useMemo, useRef, useState } from 'react'
import type { TrailRecord } from '../../../../src/client/types.ts'
import { errorText } from '../../data/error-text.ts'
import { useClient, useLiveData } from '../../data/live-context.ts'

const PAGE_SIZE = 500

export type RecordQuery = { readonly event: string; readonly agent_id: string; readonly sandbox_id: string }

const matches = (record: TrailRecord, query: RecordQuery): boolean =>
  (query.event === '' || record.event === query.event) &&
  (query.agent_id === '' || record.agent_id === query.agent_id) &&
  (query.sandbox_id === '' || record.sandbox_id === query.sandbox_id)

export type Records = {
  readonly records: readonly TrailRecord[]
  readonly loadMore: () => void
  readonly isComplete: boolean
  readonly error: string | undefined
}

/** Matching records, newest first: new ones arrive with the stream, older ones are fetched page by page. */
export function useRecords(query: RecordQuery): Records {
  const { records: live } = useLiveData()
  const key = JSON.stringify(query)
  const { older, load, isComplete, error } = useOlderRecords(key)
  const records = useMemo(() => {
    const newestFetched = older[0]?.seq ?? -1
    const wanted = JSON.parse(key) as RecordQuery
    return [...live.filter((one) => one.seq > newestFetched && matches(one, wanted)).reverse(), ...older]
  }, [live, older, key])
  const lastSeq = records.at(-1)?.seq
  const loadMore = useCallback(() => {
    if (!isComplete && lastSeq !== undefined) void load(lastSeq, key)
  }, [isComplete, lastSeq, load, key])
  return { records, loadMore, isComplete, error }
}

/** Pages of records that match the query in `key`, from the newest on. */
function useOlderRecords(key: string) {
  const client = useClient()
  const [older, setOlder] = useState<readonly TrailRecord[]>([])
  const [isComplete, setComplete] = useState(false)
  const [error, setError] = useState<string | undefined>(undefined)
  const isLoading = useRef(false)
  const currentKey = useRef(key)
  currentKey.current = key
  const load = useCallback(
    async (before: number | undefined, of: string): Promise<void> => {
      if (isLoading.current) return
      isLoading.current = true
      try {
        const filter = Object.entries(JSON.parse(of) as RecordQuery).filter(([, value]) => value !== '')
        const page = { order: 'desc', limit: PAGE_SIZE, before, ...Object.fromEntries(filter) } as const
        const { items } = await client.trail(page)
        if (currentKey.current !== of) return
        setOlder((known) => (before === undefined ? items : [...known, ...items]))
        setComplete(items.length < PAGE_SIZE)
        setError(undefined)
      } catch (problem) {
        setError(errorText(problem))
      } finally {
        isLoading.current = false
      }
    },
    [client],
  )
  useEffect(() => {
    setOlder([])
    setComplete(false)
    isLoading.current = false
    void load(undefined, key)
  }, [key, load])
  return { older, load, isComplete, error }
}
