import { constants } from 'node:os'

const SIGNALS = new Map(Object.entries(constants.signals).map(([name, number]) => [number as number, name]))

/** The name of a signal that the kernel gives as a number. */
export const signalName = (number: number): string => SIGNALS.get(number) ?? `SIG${number}`

/** Its number; what nobody knows counts as the one that ends for sure. */
export const signalNumber = (name: string): number =>
  (constants.signals as Readonly<Record<string, number>>)[name] ?? constants.signals.SIGKILL
