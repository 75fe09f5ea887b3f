import { Component, type ReactNode } from 'react'
import { Button, Empty } from './ui.tsx'

type Props = { readonly name: string; readonly children: ReactNode }
type State = { readonly problem?: string; readonly of?: string }

/** A page that fails says so; the rest of the console goes on. */
export class Failsafe extends Component<Props, State> {
  override state: State = {}

  static getDerivedStateFromError(error: Error): State {
    return { problem: error.message }
  }

  static getDerivedStateFromProps({ name }: Props, { problem, of }: State): State {
    // Another page starts afresh.
    return of === name ? { ...(problem === undefined ? {} : { problem }), of } : { of: name }
  }

  override render(): ReactNode {
    if (this.state.problem === undefined) return this.props.children
    return (
      <div role="alert">
        <Empty title="This page failed">{this.state.problem}</Empty>
        <Button onClick={() => location.reload()}>Load it again</Button>
      </div>
    )
  }
}
