import { constants } from 'node:os'

const SIGNALS = new Map(Object.entries(constants.signals).map(([name, number]) => [number as number, name]))

/** The name of a signal number. */
export const signalName = (number: number): string => SIGNALS.get(number) ?? `SIG${number}`

/** The number of a signal name; SIGKILL for an unknown name. */
export const signalNumber = (name: string): number =>
  (constants.signals as Readonly<Record<string, number>>)[name] ?? constants.signals.SIGKILL
