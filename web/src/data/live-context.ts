import { createContext, useContext, useSyncExternalStore } from 'react'
import type { ConsoleClient } from '../../../src/client/console.ts'
import type { Who } from '../../../src/client/console-types.ts'
import type { LiveData, LiveStore } from './live-store.ts'

const LiveContext = createContext<LiveStore | undefined>(undefined)
export const LiveProvider = LiveContext.Provider

export function useLiveStore(): LiveStore {
  const store = useContext(LiveContext)
  if (!store) throw new Error('useLiveStore needs a LiveProvider above it')
  return store
}

export const useClient = (): ConsoleClient => useLiveStore().client

/** The key this session acts as: its tenant, scopes and the server's version. */
export const useIdentity = (): Who => useLiveStore().identity

export function useLiveData(): LiveData {
  const store = useLiveStore()
  return useSyncExternalStore(store.subscribe, store.snapshot)
}
