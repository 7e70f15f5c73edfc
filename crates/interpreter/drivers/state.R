# What the cells of an R context left, written to a file and read from one: more of the driver (`r.R`), in whose environment this is
# evaluated when the host first asks for either.
#
# All variables are serialised at once, so environments that two of them share are shared again. That is done by a copy of the
# process, which can be ended; what code of cells runs meanwhile changes nothing here.

state_magic <- "offleash-state-1 R"
# Of the driver and of generators of random numbers.
state_own <- c(".Random.seed", ".Last.value")

state_names <- function() setdiff(ls(globalenv(), all.names = TRUE), state_own)

state_frame <- function(id, kind, ...) tell(id, kind, utils::head(bytes_of(paste(substr(c(...), 1L, 300L), collapse = "\n")), 4096L))
state_refuse <- function(id, why, reason = "") state_frame(id, "refused", why, gsub("\n", " ", reason, fixed = TRUE))
state_obstacle <- function(id, name, type, reason) {
    state_frame(id, "obstacle", gsub("\n", " ", c(name, type, reason), fixed = TRUE))
}

# Why a value cannot be carried; nothing of one that can.
state_reason <- function(value) {
    found <- NULL
    look <- function(object) {
        if (typeof(object) %in% c("externalptr", "weakref")) found <<- typeof(object)
        NULL
    }
    to <- file("/dev/null", "wb", raw = TRUE)
    on.exit(close(to))
    failed <- tryCatch({ serialize(value, to, refhook = look); NULL }, error = conditionMessage)
    if (!is.null(failed)) return(failed)
    # Its own, which it makes anew.
    if (is.null(found) || inherits(value, "data.table")) return(NULL)
    if (inherits(value, "connection")) "an open connection cannot be carried" else "it holds what is outside of R (external pointer)"
}

# What there is that cannot be carried: names, types and reasons.
state_obstacles <- function() {
    found <- list()
    # Of classes and methods that cells declared there is what is outside of R, which is made anew.
    for (name in grep("^\\.__[CT]__", state_names(), value = TRUE, invert = TRUE)) {
        type <- "active binding"
        reason <- "its value is made anew each time that it is asked for"
        if (!bindingIsActive(as.name(name), globalenv())) {
            failure <- NULL
            value <- tryCatch(get(name, globalenv()), error = function(error) failure <<- conditionMessage(error))
            type <- if (is.null(failure)) class(value)[[1L]] else "promise"
            reason <- if (is.null(failure)) state_reason(value) else failure
        }
        if (!is.null(reason)) found[[length(found) + 1L]] <- c(name, type, reason)
    }
    attached <- grep("^(\\.GlobalEnv|Autoloads|package:.*)$", search(), value = TRUE, invert = TRUE)
    c(found, lapply(attached, function(name) c(sprintf("(attached) %s", name), "environment", "it was attached")))
}

state_surroundings <- function() {
    now <- options()
    changed <- vapply(names(now), function(name) name != "device" && !identical(now[[name]], first_options[[name]]), NA)
    env <- Sys.getenv(names = TRUE)
    list(
        magic = state_magic, version = getRversion(), cwd = getwd(),
        packages = rev(sub("^package:", "", grep("^package:", search(), value = TRUE))),
        options = Filter(function(option) is.null(state_reason(option)), now[changed]),
        gone_options = setdiff(names(first_options), names(now)),
        env = unclass(env)[!vapply(names(env), function(name) identical(env[[name]], unname(first_env[name])), NA)],
        gone_env = setdiff(names(first_env), names(env))
    )
}

# Writes it all; answers how many bytes that are, or why there are none.
state_write <- function(path, count, names, most) {
    # How the shell ends tells what failed: it is done before we have heard of it where there is little to write.
    command <- sprintf("set -C; umask 077; { head -c %.0f || exit 98; } >%s || exit 99", most + 1, shQuote(path))
    to <- pipe(command, "wb")
    failed <- tryCatch({
        serialize(c(state_surroundings(), count = count), to)
        serialize(mget(names, globalenv()), to)
        NULL
    }, error = conditionMessage)
    status <- close(to)
    size <- file.size(path)
    if (!is.na(size) && size > most) c("large", sprintf("it has more than %.0f bytes", most))
    else if (length(status) && status == 98L * 256L) c("full", "it could not be written")
    else if (!is.null(failed)) c("other", failed)
    else if (length(status) && status != 0L) c("other", "its file could not be made")
    else sprintf("%.0f", size)
}

save_state <- function(order) {
    lines <- strsplit(order$code, "\n", fixed = TRUE)[[1L]]
    id <- lines[[1L]]
    bounds <- as.numeric(strsplit(lines[[2L]], " ", fixed = TRUE)[[1L]])
    path <- lines[[3L]]
    is_saved <- FALSE
    on.exit(if (!is_saved) unlink(path))
    if (!requireNamespace("parallel", quietly = TRUE)) return(state_refuse(id, "other", "the package parallel is not there"))
    in_copy <- quote({
        found <- state_obstacles()
        if (length(found) && !bounds[[3L]]) list(found, c("obstacles", ""))
        else list(found, state_write(path, order$count, setdiff(state_names(), vapply(found, `[[`, "", 1L)), bounds[[2L]]))
    })
    job <- parallel::mcparallel(eval(in_copy), mc.set.seed = FALSE, silent = TRUE)
    made <- suppressWarnings(parallel::mccollect(job, wait = FALSE, timeout = bounds[[1L]]))
    tools::pskill(job$pid, 9L)
    suppressWarnings(parallel::mccollect(job))
    outcome <- if (length(made)) made[[1L]]
    if (is.null(made)) return(state_refuse(id, "time", sprintf("it took longer than %.0f seconds", bounds[[1L]])))
    if (!is.list(outcome)) return(state_refuse(id, "other", paste("the process that saves it ended by itself:", format(outcome))))
    for (each in utils::head(outcome[[1L]], 100L)) state_obstacle(id, each[[1L]], each[[2L]], each[[3L]])
    is_saved <- length(outcome[[2L]]) == 1L
    if (is_saved) state_frame(id, "saved", outcome[[2L]])
    else state_refuse(id, outcome[[2L]][[1L]], outcome[[2L]][[2L]])
}

load_state <- function(order) {
    lines <- strsplit(order$code, "\n", fixed = TRUE)[[1L]]
    id <- lines[[1L]]
    path <- lines[[2L]]
    missing <- list()
    count <- tryCatch({
        from <- file(path, "rb", raw = TRUE)
        head <- tryCatch(unserialize(from), error = function(error) NULL)
        if (!is.list(head) || !identical(head$magic, state_magic)) stop("the file is no state of a context")
        if (!identical(head$version, getRversion())) stop("it is of another release of R")
        if (length(head$gone_env)) Sys.unsetenv(head$gone_env)
        if (length(head$env)) do.call(Sys.setenv, as.list(head$env))
        tryCatch(setwd(head$cwd), error = function(error) {
            missing[[1L]] <<- c("(working directory)", "character", conditionMessage(error))
        })
        for (package in setdiff(head$packages, .packages())) {
            suppressMessages(library(package, character.only = TRUE, warn.conflicts = FALSE))
        }
        values <- unserialize(from)
        list2env(values, globalenv())
        if (any(grepl("^\\.__[CT]__", names(values)))) methods::cacheMetaData(1L, TRUE)
        options(head$options)
        if (length(head$gone_options)) do.call(options, structure(vector("list", length(head$gone_options)), names = head$gone_options))
        as.integer(head$count)
    }, error = function(error) state_refuse(id, "other", conditionMessage(error)), finally = {
        if (exists("from", inherits = FALSE)) close(from)
        # Whatever code of the context has just set.
        suppressWarnings(rm(".Random.seed", envir = globalenv()))
        unlink(path)
    })
    if (!is.integer(count)) return()
    for (each in missing) state_obstacle(id, each[[1L]], each[[2L]], each[[3L]])
    state_frame(id, "loaded", format(count))
    count
}
