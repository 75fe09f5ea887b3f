# The R kernel of the code interpreter. It runs inside the sandbox and needs base R alone: one R expression per line on
# standard input, `list(code=…, env=list(…))`, and JSON lines with a marker on standard output. What programs print directly
# reaches the host without a marker and counts as output. If the package `repr` is there, data frames and the like are also
# shown as HTML.
.ringfence <- new.env()

local(envir = .ringfence, {
  mark <- paste0("\x1e", Sys.getenv("RINGFENCE_KERNEL"), " ")
  Sys.unsetenv("RINGFENCE_KERNEL")
  if (!l10n_info()$`UTF-8`) invisible(Sys.setlocale("LC_CTYPE", "C.UTF-8"))
  requests <- file("stdin", open = "r")
  answers <- stdout()
  count <- 0L
  plots <- tempfile("plot")

  # A text as JSON.
  quoted <- function(text) {
    text <- enc2utf8(paste(text, collapse = "\n"))
    text <- gsub("\\", "\\\\", text, fixed = TRUE)
    text <- gsub("\"", "\\\"", text, fixed = TRUE)
    text <- gsub("\n", "\\n", text, fixed = TRUE)
    text <- gsub("\r", "\\r", text, fixed = TRUE)
    text <- gsub("\t", "\\t", text, fixed = TRUE)
    paste0("\"", gsub("[[:cntrl:]]", "\ufffd", text), "\"")
  }

  # Sends a message; values that are not text are JSON already.
  send <- function(type, ...) {
    fields <- list(...)
    shown <- vapply(names(fields), function(name) {
      value <- fields[[name]]
      paste0(quoted(name), ":", if (inherits(value, "AsIs")) unclass(value) else quoted(value))
    }, "")
    line <- paste0(mark, "{", paste(c(paste0("\"type\":", quoted(type)), shown), collapse = ","), "}")
    cat(line, "\n", sep = "", file = answers)
    flush(answers)
  }

  # Sends a message that ends something; the marker on standard error tells that nothing more comes there.
  finish <- function(type) {
    cat(mark, "\n", sep = "", file = stderr())
    send(type)
  }

  said <- function(stream, text) {
    if (nzchar(text)) send(stream, text = text, timestamp = I(format(round(as.numeric(Sys.time()) * 1e6), scientific = FALSE)))
  }

  html_of <- function(value) {
    if (!is.data.frame(value) && !is.matrix(value)) return(NULL)
    if (!requireNamespace("repr", quietly = TRUE)) return(NULL)
    tryCatch(repr::repr_html(value), error = function(error) NULL)
  }

  show_value <- function(value) {
    text <- paste(utils::capture.output(if (isS4(value)) methods::show(value) else print(value)), collapse = "\n")
    html <- html_of(value)
    if (is.null(html)) send("result", is_main_result = I("true"), text = text)
    else send("result", is_main_result = I("true"), text = text, html = html)
  }

  # Pictures that the code has drawn, in the order of their pages.
  show_plots <- function() {
    if (grDevices::dev.cur() > 1) grDevices::graphics.off()
    files <- sort(Sys.glob(paste0(plots, "*.png")))
    for (file in files) {
      send("result", is_main_result = I("false"), text = "<plot>", png = base64(file))
      unlink(file)
    }
  }

  base64 <- function(file) {
    bytes <- as.integer(readBin(file, "raw", file.size(file)))
    letters64 <- c(LETTERS, letters, 0:9, "+", "/")
    missing <- (3L - length(bytes) %% 3L) %% 3L
    triples <- matrix(c(bytes, rep(0L, missing)), nrow = 3)
    word <- triples[1, ] * 65536L + triples[2, ] * 256L + triples[3, ]
    digits <- rbind(word %/% 262144L, word %/% 4096L %% 64L, word %/% 64L %% 64L, word %% 64L)
    text <- letters64[digits + 1L]
    if (missing > 0) text[length(text) - seq_len(missing) + 1L] <- "="
    paste(text, collapse = "")
  }

  trace_of <- function(error) {
    call <- conditionCall(error)
    where <- if (is.null(call)) "Error: " else paste0("Error in ", paste(deparse(call), collapse = " "), ": ")
    paste0(where, conditionMessage(error))
  }

  # Runs one piece of code, expression by expression, and shows the values that R would print.
  run <- function(code) {
    failed <- function(error) send("error", name = class(error)[1], value = conditionMessage(error), traceback = trace_of(error))
    told <- function(condition, label) said("stderr", paste0(label, conditionMessage(condition), if (label != "") "\n"))
    tryCatch(
      withCallingHandlers(
        for (expression in parse(text = code, keep.source = FALSE)) {
          outcome <- withVisible(eval(expression, globalenv()))
          if (outcome$visible) show_value(outcome$value)
        },
        warning = function(condition) { told(condition, "Warning: "); invokeRestart("muffleWarning") },
        message = function(condition) { told(condition, ""); invokeRestart("muffleMessage") }
      ),
      error = failed,
      interrupt = function(condition) send("error", name = "Interrupt", value = "interrupted", traceback = "")
    )
  }

  execute <- function(request) {
    before <- lapply(names(request$env), function(name) Sys.getenv(name, unset = NA))
    names(before) <- names(request$env)
    if (length(request$env) > 0) do.call(Sys.setenv, request$env)
    run(request$code)
    # Output that the code has diverted would take our answers with it.
    while (sink.number() > 0) sink()
    sink(type = "message")
    show_plots()
    for (name in names(before)) {
      if (is.na(before[[name]])) Sys.unsetenv(name) else do.call(Sys.setenv, before[name])
    }
    count <<- count + 1L
    send("number_of_executions", execution_count = I(as.character(count)))
    finish("end_of_execution")
  }

  options(device = function(...) grDevices::png(paste0(plots, "%03d.png"), width = 640, height = 480))
  finish("ready")
})

repeat {
  .ringfence$line <- tryCatch(readLines(.ringfence$requests, n = 1L), interrupt = function(condition) NULL)
  if (is.null(.ringfence$line)) next
  if (length(.ringfence$line) == 0L) break
  .ringfence$execute(eval(parse(text = .ringfence$line, keep.source = FALSE)))
}
