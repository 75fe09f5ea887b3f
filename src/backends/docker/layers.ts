import { layersOf as kernelLayers } from '../bubblewrap/layers.ts'

/** What the agent read of itself, and that a control group holds it: the engine always makes one. */
export const layersOf = (status: ReadonlyMap<string, string>): readonly string[] => [
  'container',
  ...kernelLayers(status, true),
]
