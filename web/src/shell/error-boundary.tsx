import { Component, type ReactNode } from 'react'
import { Button } from '../components/button.tsx'
import { EmptyState } from '../components/empty-state.tsx'

type Props = { readonly page: string; readonly children: ReactNode }
type State = { readonly error?: string; readonly page?: string }

/** Shows an error in place of a page that failed to render; the rest of the console keeps working. */
export class ErrorBoundary extends Component<Props, State> {
  override state: State = {}

  static getDerivedStateFromError(error: Error): State {
    return { error: error.message }
  }

  static getDerivedStateFromProps({ page }: Props, state: State): State {
    // The error belongs to one page: another page starts without it.
    return state.page === page ? state : { page }
  }

  override render(): ReactNode {
    if (this.state.error === undefined) return this.props.children
    return (
      <div role="alert">
        <EmptyState title="This page could not be displayed">{this.state.error}</EmptyState>
        <Button onClick={() => location.reload()}>Reload</Button>
      </div>
    )
  }
}
