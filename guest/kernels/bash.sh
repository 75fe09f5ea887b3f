# The Bash kernel of the code interpreter, read by an interactive shell at its start. The host writes each request as shell
# lines: `__ringfence_begin NAME=VALUE…`, then `eval CODE </dev/null`, then `__ringfence_end`. The shell is interactive
# because only then an interrupt ends the whole piece of code and not the shell.
PS1= PS2= PROMPT_COMMAND=
unset HISTFILE MAILCHECK
set +o history +o histexpand +o monitor
# PLATFORM: an interactive shell ignores SIGTERM.
trap 'exit 143' TERM

__ringfence_mark=$'\x1e'"$RINGFENCE_KERNEL "
__ringfence_count=0
unset RINGFENCE_KERNEL

# The streams as they are now: the code may divert its own.
exec {__ringfence_out}>&1 {__ringfence_err}>&2

__ringfence_send() {
  printf '%s%s\n' "$__ringfence_mark" "$1" >&"$__ringfence_out"
}

# Sends a message that ends something; the marker on standard error tells that nothing more comes there.
__ringfence_finish() {
  printf '%s\n' "$__ringfence_mark" >&"$__ringfence_err"
  __ringfence_send "$1"
}

# Sets variables for one piece of code; declares how to undo it.
__ringfence_begin() {
  local __ringfence_one __ringfence_name
  __ringfence_undo=
  for __ringfence_one; do
    __ringfence_name=${__ringfence_one%%=*}
    if [[ -v $__ringfence_name ]]; then
      __ringfence_undo+="export $__ringfence_name=${!__ringfence_name@Q};"
    else
      __ringfence_undo+="unset $__ringfence_name;"
    fi
    export "$__ringfence_one"
  done
}

__ringfence_end() {
  local __ringfence_status=$?
  eval "$__ringfence_undo"
  if ((__ringfence_status)); then
    __ringfence_send "{\"type\":\"error\",\"name\":\"\",\"value\":\"$__ringfence_status\",\"traceback\":\"\"}"
  fi
  __ringfence_send "{\"type\":\"number_of_executions\",\"execution_count\":$((++__ringfence_count))}"
  __ringfence_finish '{"type":"end_of_execution"}'
}

__ringfence_finish '{"type":"ready"}'
