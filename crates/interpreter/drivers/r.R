# What runs cells in contexts of R; `r.sh` starts it and says more.
#
# Nothing of this is where cells look: it has an environment of its own, in which base alone is found, and no connection is open
# while a cell runs. Interrupts wait but for where code of cells is run.

eval(quote({

speaker <- commandArgs(TRUE)[[1L]]
# What a frame may have; a form of a result that is larger is left out, and its size told.
most_payload <- 16 * 1024 * 1024
plots <- tempfile("offleash-plots-")
dir.create(plots)
devices <- integer()
opened <- 0L

place <- function(number) file.path("/proc", speaker, "fd", number)

say <- function(number, bytes) {
    to <- file(place(number), "wb", raw = TRUE)
    on.exit(close(to))
    writeBin(bytes, to)
}

# Takes an order: the cell's id, its number, its code and its variables.
take <- function() {
    from <- file(place(220), "rb", raw = TRUE)
    on.exit(close(from))
    line <- function() {
        bytes <- raw()
        repeat {
            byte <- readBin(from, "raw", 1L)
            # Nobody will ever ask for anything again.
            if (!length(byte)) base::quit("no", 0L, FALSE)
            if (byte == as.raw(10L)) return(strsplit(rawToChar(bytes), " ", fixed = TRUE)[[1L]])
            bytes <- c(bytes, byte)
        }
    }
    text <- function(size) {
        text <- rawToChar(readBin(from, "raw", as.integer(size)))
        Encoding(text) <- "UTF-8"
        text
    }
    words <- line()
    order <- list(id = words[[1L]], count = words[[2L]], code = text(words[[3L]]))
    order$env <- vapply(seq_len(as.integer(words[[4L]])), function(each) text(line()), "")
    order
}

bytes_of <- function(text) charToRaw(enc2utf8(text))

base64 <- function(bytes) {
    if (!length(bytes)) return("")
    digits <- utf8ToInt(paste(c(LETTERS, letters, 0:9, "+", "/"), collapse = ""))
    missing <- -length(bytes) %% 3L
    three <- matrix(as.integer(c(bytes, raw(missing))), 3L)
    at <- rbind(three[1L, ] %/% 4L, three[1L, ] %% 4L * 16L + three[2L, ] %/% 16L,
                three[2L, ] %% 16L * 4L + three[3L, ] %/% 64L, three[3L, ] %% 64L)
    made <- digits[at + 1L]
    if (missing) made[length(made) + 1L - seq_len(missing)] <- utf8ToInt("=")
    rawToChar(as.raw(made))
}

# What is told of a cell, in frames.
told <- list()
tell <- function(id, kind, payload = raw()) {
    head <- charToRaw(sprintf("%s %s %d\n", kind, id, length(payload)))
    told[[length(told) + 1L]] <<- c(head, payload)
}
tell_form <- function(id, mime, form) {
    head <- charToRaw(paste0(mime, "\n"))
    form <- bytes_of(form)
    if (length(head) + length(form) > most_payload) {
        tell(id, "omitted", c(head, charToRaw(format(length(form), scientific = FALSE))))
    } else {
        tell(id, "text", c(head, form))
    }
}
tell_error <- function(id, name, value, trace) {
    bounded <- function(text) utils::head(bytes_of(text), most_payload / 4)
    tell(id, "error_name", bounded(name))
    tell(id, "error_value", bounded(value))
    tell(id, "error", bounded(trace))
}

escaped <- function(text) {
    text <- gsub("&", "&amp;", text, fixed = TRUE)
    gsub(">", "&gt;", gsub("<", "&lt;", text, fixed = TRUE), fixed = TRUE)
}

# The first rows of a data frame.
table_of <- function(frame) {
    shown <- utils::head(frame, 60L)
    cells <- vapply(shown, function(column) paste0("<td>", escaped(trimws(format(column))), "</td>"), character(nrow(shown)))
    rows <- apply(matrix(cells, nrow(shown)), 1L, paste, collapse = "")
    names <- paste0("<th>", escaped(c("", names(shown))), "</th>", collapse = "")
    body <- paste0("<tr><th>", escaped(row.names(shown)), "</th>", rows, "</tr>", collapse = "\n")
    size <- sprintf("<p>%d rows, %d columns</p>", nrow(frame), ncol(frame))
    paste0("<table>\n<thead><tr>", names, "</tr></thead>\n<tbody>\n", body, "\n</tbody>\n</table>\n", size)
}

# Where plots are drawn when a cell opened nothing else.
draw <- function() {
    opened <<- opened + 1L
    if (capabilities("cairo")) {
        grDevices::png(file.path(plots, sprintf("%06d-%%05d.png", opened)), 960, 720, res = 120, type = "cairo")
    } else {
        grDevices::pdf(file.path(plots, sprintf("%06d-%%05d.pdf", opened)), 8, 6, onefile = FALSE)
    }
    devices <<- c(devices, grDevices::dev.cur())
}

tell_plots <- function(id) {
    for (device in intersect(devices, grDevices::dev.list())) grDevices::dev.off(device)
    devices <<- integer()
    for (name in sort(list.files(plots, full.names = TRUE))) {
        mime <- if (endsWith(name, ".png")) "image/png" else "application/pdf"
        tell_form(id, mime, base64(readBin(name, "raw", file.size(name))))
        tell(id, "result", charToRaw("display"))
        unlink(name)
    }
}

# The calls between that of a cell's expression and the error.
trace_of <- function(calls) {
    began <- which(vapply(calls, identical, NA, quote(eval(expression, globalenv()))))
    ended <- which(vapply(calls, function(call) {
        is.name(call[[1L]]) && as.character(call[[1L]]) %in% c(".handleSimpleError", "h", "stop", "warning")
    }, NA))
    begin <- if (length(began)) began[[1L]] + 2L else 1L
    ended <- ended[ended >= begin]
    calls <- calls[seq_len(length(calls)) >= begin & seq_len(length(calls)) < min(ended, length(calls) + 1L)]
    lines <- vapply(utils::tail(calls, 50L), function(call) substr(deparse(call, nlines = 1L)[[1L]], 1L, 200L), "")
    if (length(lines)) paste0("  ", format(seq_along(lines)), ": ", lines)
}

error_of <- function(id, error, calls) {
    value <- conditionMessage(error)
    call <- conditionCall(error)
    if (inherits(error, "offleash_syntax")) return(tell_error(id, "SyntaxError", value, value))
    own <- is.null(call) || identical(call, quote(eval(expression, globalenv())))
    head <- if (own) paste0("Error: ", value) else paste0("Error in ", deparse(call, nlines = 1L)[[1L]], ": ", value)
    tell_error(id, class(error)[[1L]], value, paste(c(head, trace_of(calls)), collapse = "\n"))
}

parsed <- function(code, count) {
    lines <- strsplit(code, "\n", fixed = TRUE)[[1L]]
    source <- srcfilecopy(paste("cell", count), lines)
    tryCatch(parse(text = code, srcfile = source, keep.source = TRUE, encoding = "UTF-8"), error = function(error) {
        class(error) <- c("offleash_syntax", class(error))
        stop(error)
    })
}

# Evaluates the expressions of a cell; values are printed, that of the last one is the result.
evaluate <- function(order) {
    expressions <- parsed(order$code, order$count)
    for (number in seq_along(expressions)) {
        expression <- expressions[[number]]
        made <- withVisible(eval(expression, globalenv()))
        if (!made$visible) next
        assign(".Last.value", made$value, globalenv())
        if (number < length(expressions)) eval(quote(print(.Last.value)), globalenv())
        else show_value(order$id, made$value)
    }
}

show_value <- function(id, value) {
    text <- paste(utils::capture.output(eval(quote(print(.Last.value)), globalenv())), collapse = "\n")
    table <- if (is.data.frame(value) && nrow(value) && ncol(value)) tryCatch(table_of(value), error = function(error) NULL)
    suspendInterrupts({
        if (nzchar(text)) tell_form(id, "text/plain", text)
        if (!is.null(table)) tell_form(id, "text/html", table)
        if (nzchar(text) || !is.null(table)) tell(id, "result", charToRaw("main"))
    })
}

run <- function(order) {
    told <<- list()
    names <- sub("=.*", "", order$env)
    before <- Sys.getenv(names, NA, names = FALSE)
    if (length(names)) do.call(Sys.setenv, as.list(structure(substring(order$env, nchar(names) + 2L), names = names)))
    # One that came when no cell ran.
    tryCatch(allowInterrupts(for (each in 1:5000) NULL), interrupt = identity)
    calls <- list()
    tryCatch(
        withCallingHandlers(allowInterrupts(evaluate(order)), error = function(error) calls <<- sys.calls()),
        error = function(error) error_of(order$id, error, calls),
        interrupt = function(interrupt) tell_error(order$id, "KeyboardInterrupt", "interrupted", "KeyboardInterrupt: interrupted")
    )
    while (sink.number() > 0L) sink()
    if (sink.number("message") != 2L) sink(type = "message")
    tryCatch(tell_plots(order$id), error = function(error) tell_error(order$id, "plot", conditionMessage(error), conditionMessage(error)))
    for (each in seq_along(names)) {
        if (is.na(before[[each]])) Sys.unsetenv(names[[each]])
        else do.call(Sys.setenv, as.list(structure(before[[each]], names = names[[each]])))
    }
}

# What is there before any cell.
first_options <- options()
first_env <- unclass(Sys.getenv(names = TRUE))

# An order that is no cell: more of this, or one that is carried out by that. Answers the number of cells from now on.
do_other <- function(order) {
    told <<- list()
    count <- as.integer(order$count)
    made <- tryCatch(switch(order$id,
        part = eval(parse(text = order$code, keep.source = FALSE, encoding = "UTF-8"), environment(run)),
        save = save_state(order),
        load = load_state(order)
    ), error = function(error) {
        id <- strsplit(order$code, "\n", fixed = TRUE)[[1L]][[1L]]
        tell(id, "refused", bytes_of(paste0("other\n", conditionMessage(error))))
    })
    if (order$id == "load" && is.integer(made)) made else count
}

suspendInterrupts({
    if (!l10n_info()[["UTF-8"]]) suppressWarnings(Sys.setlocale("LC_CTYPE", "C.UTF-8"))
    options(device = draw, warn = 1L)
    say(221, charToRaw("ready 0\n"))
    repeat {
        order <- take()
        count <- as.integer(order$count)
        if (order$id %in% c("part", "save", "load")) count <- do_other(order) else run(order)
        frames <- unlist(told)
        say(221, charToRaw(sprintf("done %d %d\n", length(frames), count)))
        if (length(frames)) say(222, frames)
    }
})

}), new.env(parent = baseenv()))
