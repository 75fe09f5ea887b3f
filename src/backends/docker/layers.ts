import { layersOf as kernelLayers } from '../bubblewrap/layers.ts'

/** The layers that the agent read, and the cgroup, which the engine always creates. */
export const layersOf = (status: ReadonlyMap<string, string>): readonly string[] => [
  'container',
  ...kernelLayers(status, true),
]
