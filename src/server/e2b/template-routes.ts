import type { RestRoute } from './control.ts'

export const TEMPLATES: readonly RestRoute[] = []
