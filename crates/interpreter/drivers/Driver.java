// The driver of Java contexts: runs cells inside a sandbox, one after another, in one JShell.
//
// The host starts it and speaks to it in frames (`src/protocol.rs` is their reference). Cells run in this virtual
// machine and can do to it whatever they like; the host believes nothing that comes from here. What is written here only
// makes sure that code that means no harm does not do it by accident.
//
// Java cannot move descriptors, so the line that starts this file has done it: 3 leads from the host and 4 to it, 0 is
// `/dev/null`, 1 and 2 are pipes, whose other ends are 5 and 6. Children get 0 to 2 alone. A thread reads each pipe and
// makes frames of it. That all was read which was written before is known by a mark in the same pipe: a NUL and a number
// that nobody writes by accident.
//
// Java 17 and newer, with its compiler.

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import jdk.jshell.UnresolvedReferenceException;

final class Driver {
    static final String NOBODY = "0".repeat(32);
    // What a frame may have; a value whose text is larger is left out, and its size told.
    static final int MOST_PAYLOAD = 16 * 1024 * 1024;
    // How much output is sent at once.
    static final int CHUNK = 48 * 1024;
    // What JShell itself imports, as the program of that name does.
    static final String[] IMPORTS = {
        "java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.util.*", "java.util.concurrent.*",
        "java.util.function.*", "java.util.prefs.*", "java.util.regex.*", "java.util.stream.*",
    };

    public static void main(String[] arguments) throws Exception {
        // The file that this was read from, in a directory of its own.
        File file = new File(arguments[0]);
        Host host = new Host(descriptor(3), descriptor(4));
        Output output = new Output(host);
        Cells cells = new Cells(host, output);
        cells.interruptOn("INT");
        file.delete();
        file.getParentFile().delete();
        host.serve(cells, output);
        // Nobody will ever ask for anything again.
        Runtime.getRuntime().halt(0);
    }

    static FileDescriptor descriptor(int number) throws ReflectiveOperationException {
        FileDescriptor made = new FileDescriptor();
        Field field = FileDescriptor.class.getDeclaredField("fd");
        field.setAccessible(true);
        field.setInt(made, number);
        return made;
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    // Frames from the host, and for it.
    static final class Host {
        private final InputStream from;
        private final OutputStream to;
        private String cell = NOBODY;
        private long room;
        private long dropped;

        Host(FileDescriptor from, FileDescriptor to) {
            this.from = new BufferedInputStream(new FileInputStream(from));
            this.to = new FileOutputStream(to);
        }

        void serve(Cells cells, Output output) throws IOException {
            ByteArrayOutputStream code = new ByteArrayOutputStream();
            Map<String, String> env = new LinkedHashMap<>();
            int count = 0;
            for (String line = line(); line != null; line = line()) {
                String[] words = line.split(" ");
                byte[] payload = from.readNBytes(Integer.parseInt(words[2]));
                String text = new String(payload, StandardCharsets.UTF_8);
                switch (words[0]) {
                    case "sync":
                        code.reset();
                        env.clear();
                        send("sync", words[1], utf8(String.valueOf(count)));
                        break;
                    case "code":
                        code.write(payload);
                        break;
                    case "env":
                        int at = text.indexOf('=');
                        env.put(text.substring(0, at), text.substring(at + 1));
                        break;
                    case "run":
                        count += 1;
                        send("count", words[1], utf8(String.valueOf(count)));
                        output.finish();
                        begin(words[1], Long.parseLong(text.split(" ")[0]));
                        cells.run(count, code.toString(StandardCharsets.UTF_8), env);
                        output.finish();
                        end();
                        code.reset();
                        env.clear();
                        break;
                    default:
                        break;
                }
            }
        }

        private String line() throws IOException {
            StringBuilder line = new StringBuilder();
            for (int each = from.read(); each >= 0; each = from.read()) {
                if (each == '\n') return line.toString();
                line.append((char) each);
            }
            return null;
        }

        private synchronized void begin(String id, long size) {
            cell = id;
            room = size;
            dropped = 0;
        }

        private synchronized void end() {
            if (dropped > 0) send("truncated", cell, utf8(String.valueOf(dropped)));
            send("done", cell, new byte[0]);
            cell = NOBODY;
            room = 0;
        }

        // Something of the cell that runs.
        synchronized void tell(String kind, byte[] payload) {
            send(kind, cell, payload);
        }

        synchronized void output(String kind, byte[] data, int length) {
            int size = (int) Math.min(length, room);
            dropped += length - size;
            room -= size;
            if (size > 0) send(kind, cell, Arrays.copyOf(data, size));
        }

        // In one piece, so that nothing can come between.
        private synchronized void send(String kind, String id, byte[] payload) {
            byte[] head = utf8(kind + " " + id + " " + payload.length + "\n");
            byte[] frame = Arrays.copyOf(head, head.length + payload.length);
            System.arraycopy(payload, 0, frame, head.length, payload.length);
            try {
                to.write(frame);
            } catch (IOException error) {
                Runtime.getRuntime().halt(0);
            }
        }
    }

    // What cells and their children write.
    static final class Output {
        private final Pump[] pumps;
        private final PrintStream[] streams;
        private int last;

        Output(Host host) throws Exception {
            pumps = new Pump[] {new Pump(host, "stdout", 5, 1), new Pump(host, "stderr", 6, 2)};
            streams = new PrintStream[] {stream(0), stream(1)};
            for (Pump pump : pumps) pump.start();
            mend();
            // What was written before an end that a cell called for comes, too.
            Runtime.getRuntime().addShutdownHook(new Thread(this::finish));
        }

        // Puts back in place what a cell closed.
        void mend() {
            System.setOut(streams[0]);
            System.setErr(streams[1]);
        }

        // Waits until all that was written was passed on.
        void finish() {
            for (Pump pump : pumps) pump.barrier();
        }

        private synchronized void write(int which, byte[] data, int at, int length) throws IOException {
            // What was written to one stream comes before what is then written to the other.
            if (last != which) pumps[last].barrier();
            last = which;
            pumps[which].end.write(data, at, length);
        }

        private PrintStream stream(int which) {
            OutputStream made = new OutputStream() {
                @Override
                public void write(int each) throws IOException {
                    write(new byte[] {(byte) each}, 0, 1);
                }

                @Override
                public void write(byte[] data, int at, int length) throws IOException {
                    Output.this.write(which, data, at, length);
                }
            };
            return new PrintStream(made, true, StandardCharsets.UTF_8) {
                @Override
                public void close() {
                    // Somebody else may still want to write.
                    flush();
                }
            };
        }
    }

    // Makes frames of what comes through a pipe.
    static final class Pump extends Thread {
        // An end of its own, which no cell closes.
        final OutputStream end;
        private final Host host;
        private final String kind;
        private final InputStream from;
        private final byte[] mark;
        private long asked;
        private long heard;

        Pump(Host host, String kind, int from, int to) throws Exception {
            super("offleash-" + kind);
            setDaemon(true);
            this.host = host;
            this.kind = kind;
            this.from = new FileInputStream(descriptor(from));
            this.end = new FileOutputStream("/proc/self/fd/" + to);
            byte[] random = new byte[16];
            new SecureRandom().nextBytes(random);
            StringBuilder digits = new StringBuilder("\0");
            for (byte each : random) digits.append(String.format("%02x", each));
            mark = utf8(digits.toString());
        }

        // Waits until all that was written before was passed on.
        void barrier() {
            long number;
            synchronized (this) {
                number = ++asked;
            }
            boolean interrupted = false;
            try {
                end.write(utf8(new String(mark, StandardCharsets.US_ASCII) + String.format("%016x", number)));
                synchronized (this) {
                    while (heard < number) {
                        try {
                            wait();
                        } catch (InterruptedException error) {
                            interrupted = true;
                        }
                    }
                }
            } catch (IOException error) {
                Runtime.getRuntime().halt(70);
            }
            if (interrupted) Thread.currentThread().interrupt();
        }

        @Override
        public void run() {
            byte[] data = new byte[CHUNK];
            int kept = 0;
            try {
                for (int size; (size = from.read(data, kept, data.length - kept)) > 0; ) {
                    kept = take(data, kept + size);
                }
            } catch (IOException error) {
                Runtime.getRuntime().halt(70);
            }
        }

        // Passes on what is there, but for what may be the beginning of a mark; how much that is.
        private int take(byte[] data, int length) {
            int begin = 0;
            for (int at = 0; at < length; at++) {
                int same = 0;
                while (same < mark.length && at + same < length && data[at + same] == mark[same]) same++;
                if (same == 0 || (same < mark.length && at + same < length)) continue;
                if (at + mark.length + 16 > length) {
                    // Perhaps it goes on.
                    pass(data, begin, at);
                    System.arraycopy(data, at, data, 0, length - at);
                    return length - at;
                }
                pass(data, begin, at);
                String number = new String(data, at + mark.length, 16, StandardCharsets.US_ASCII);
                hear(Long.parseLong(number, 16));
                begin = at + mark.length + 16;
                at = begin - 1;
            }
            pass(data, begin, length);
            return 0;
        }

        private void pass(byte[] data, int from, int to) {
            if (from < to) host.output(kind, Arrays.copyOfRange(data, from, to), to - from);
        }

        private synchronized void hear(long number) {
            heard = Math.max(heard, number);
            notifyAll();
        }
    }

    // Runs cells.
    static final class Cells {
        private final Host host;
        private final Output output;
        private final JShell shell;
        private final Map<String, String> environment;
        // What of the environment is a property, too, as E2B's code interpreter has it: all that no property stands for.
        private final Map<String, String> properties = new HashMap<>();
        // Where snippets are: `cell 3`, and how many lines of it come before them.
        private final Map<String, String> names = new HashMap<>();
        private final Map<String, Integer> lines = new HashMap<>();
        private volatile boolean running;
        private volatile boolean interrupted;

        Cells(Host host, Output output) throws Exception {
            this.host = host;
            this.output = output;
            // Snippets run in this virtual machine: nothing listens, and nothing else has to start.
            shell = JShell.builder().executionEngine("local").build();
            String classes = System.getenv("CLASSPATH");
            if (classes != null) shell.addToClasspath(classes);
            for (String each : IMPORTS) shell.eval("import " + each + ";");
            // The first one that runs takes longest.
            shell.eval("1").forEach(event -> shell.drop(event.snippet()));
            startChildren();
            environment = environment();
            environment.forEach(this::setProperty);
        }

        // An interrupt amid the beginning of a class spoils that class for good; a child is what is waited for most, and has begun all
        // classes that children take, lambdas among them, once one was started with our streams and one with pipes.
        private static void startChildren() throws InterruptedException {
            for (ProcessBuilder each : List.of(new ProcessBuilder("true"), new ProcessBuilder("true").inheritIO())) {
                try {
                    each.start().waitFor();
                } catch (IOException none) {
                    // Where there is no such program cells may start others.
                }
            }
        }

        private void setProperty(String name, String value) {
            if (properties.containsKey(name) || System.getProperty(name) == null) {
                properties.put(name, value);
                System.setProperty(name, value);
            }
        }

        // The variables that are seen by `System.getenv` and `ProcessBuilder.environment`.
        @SuppressWarnings("unchecked")
        private static Map<String, String> environment() throws ReflectiveOperationException {
            Map<String, String> shown = System.getenv();
            Field field = shown.getClass().getDeclaredField("m");
            field.setAccessible(true);
            return (Map<String, String>) field.get(shown);
        }

        // By name, since the compiler warns of it.
        void interruptOn(String name) throws ReflectiveOperationException {
            Class<?> signal = Class.forName("sun.misc.Signal");
            Class<?> handler = Class.forName("sun.misc.SignalHandler");
            Object made = Proxy.newProxyInstance(Driver.class.getClassLoader(), new Class<?>[] {handler}, (proxy, method, given) -> {
                if (!method.getName().equals("handle")) return method.getName().equals("hashCode") ? (Object) 0 : null;
                if (running) {
                    interrupted = true;
                    shell.stop();
                }
                return null;
            });
            signal.getMethod("handle", signal, handler).invoke(null, signal.getConstructor(String.class).newInstance(name), made);
        }

        void run(int count, String code, Map<String, String> env) {
            Map<String, String> saved = new HashMap<>();
            Map<String, String> savedProperties = new HashMap<>();
            for (Map.Entry<String, String> each : env.entrySet()) {
                String name = each.getKey();
                saved.put(name, environment.get(name));
                environment.put(name, each.getValue());
                // One of the virtual machine's own stays what it is.
                if (properties.containsKey(name) || System.getProperty(name) == null) {
                    savedProperties.put(name, System.getProperty(name));
                    System.setProperty(name, each.getValue());
                }
            }
            output.mend();
            interrupted = false;
            running = true;
            try {
                evaluate(count, code);
            } catch (Throwable error) {
                output.finish();
                fail(error.getClass().getName(), String.valueOf(error.getMessage()), error.toString());
            } finally {
                running = false;
            }
            for (Map.Entry<String, String> each : saved.entrySet()) {
                if (each.getValue() == null) environment.remove(each.getKey());
                else environment.put(each.getKey(), each.getValue());
            }
            for (Map.Entry<String, String> each : savedProperties.entrySet()) {
                if (each.getValue() == null) System.clearProperty(each.getKey());
                else System.setProperty(each.getKey(), each.getValue());
            }
        }

        private void evaluate(int count, String code) {
            SourceCodeAnalysis analysis = shell.sourceCodeAnalysis();
            SnippetEvent last = null;
            for (String rest = code.stripLeading(); !rest.isEmpty(); rest = rest.stripLeading()) {
                int at = code.length() - rest.length();
                SourceCodeAnalysis.CompletionInfo found = analysis.analyzeCompletion(rest);
                if (found.completeness() == SourceCodeAnalysis.Completeness.EMPTY) break;
                // What is wrong with code that does not end, or is none, is told when it is tried.
                boolean whole = found.completeness().isComplete();
                String source = whole ? found.source() : rest;
                rest = whole ? found.remaining() : "";
                last = null;
                for (SnippetEvent event : shell.eval(source)) {
                    if (event.causeSnippet() != null) continue;
                    names.put(event.snippet().id(), "cell " + count);
                    lines.put(event.snippet().id(), (int) code.substring(0, at).chars().filter(each -> each == '\n').count());
                    last = event;
                    if (interrupted || !succeeded(event, count, code, source, at)) {
                        output.finish();
                        if (interrupted) fail("KeyboardInterrupt", "interrupted", "KeyboardInterrupt: interrupted");
                        return;
                    }
                }
                if (interrupted) {
                    output.finish();
                    fail("KeyboardInterrupt", "interrupted", "KeyboardInterrupt: interrupted");
                    return;
                }
            }
            if (last != null && isExpression(last.snippet()) && last.value() != null) {
                output.finish();
                show(last.value());
            }
        }

        private static boolean isExpression(Snippet snippet) {
            // Of most values JShell makes a variable, `$1` and so on.
            return snippet.kind() == Snippet.Kind.EXPRESSION || snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
        }

        // Whether a snippet did what it says; if not, that is told.
        private boolean succeeded(SnippetEvent event, int count, String code, String source, int at) {
            if (event.exception() != null) {
                output.finish();
                fail(nameOf(event.exception()), messageOf(event.exception()), traceOf(event.exception()));
                return false;
            }
            Snippet.Status status = event.status();
            if (status == Snippet.Status.VALID || status == Snippet.Status.RECOVERABLE_DEFINED) return true;
            List<String> said = new ArrayList<>();
            String first = null;
            List<Diag> diagnostics = new ArrayList<>();
            shell.diagnostics(event.snippet()).filter(Diag::isError).forEach(diagnostics::add);
            for (Diag each : diagnostics) {
                String message = each.getMessage(null).strip();
                if (first == null) first = message.lines().findFirst().orElse(message);
                said.add(located(count, code, at + (int) Math.min(Math.max(each.getPosition(), 0), source.length()), message));
            }
            if (event.snippet() instanceof jdk.jshell.DeclarationSnippet && status != Snippet.Status.REJECTED) {
                List<String> missing = new ArrayList<>();
                shell.unresolvedDependencies((jdk.jshell.DeclarationSnippet) event.snippet()).forEach(missing::add);
                first = "it needs what is not declared: " + String.join(", ", missing);
                said.add("cell " + count + ": " + first);
            }
            output.finish();
            fail("CompilationException", first == null ? "the code was rejected" : first, String.join("\n", said));
            return false;
        }

        private static String located(int count, String code, int position, String message) {
            int at = Math.min(position, code.length());
            int begin = code.lastIndexOf('\n', at - 1) + 1;
            int end = code.indexOf('\n', at) < 0 ? code.length() : code.indexOf('\n', at);
            long line = code.substring(0, begin).chars().filter(each -> each == '\n').count() + 1;
            String shown = code.substring(begin, end);
            return "cell " + count + ", line " + line + ": " + message + "\n  " + shown + "\n  " + " ".repeat(Math.min(at - begin, shown.length())) + "^";
        }

        private static String nameOf(JShellException error) {
            if (error instanceof EvalException) return ((EvalException) error).getExceptionClassName();
            return "UnresolvedReferenceException";
        }

        private String messageOf(JShellException error) {
            if (error instanceof UnresolvedReferenceException) {
                List<String> missing = new ArrayList<>();
                shell.unresolvedDependencies(((UnresolvedReferenceException) error).getSnippet()).forEach(missing::add);
                return "it needs what is not declared: " + String.join(", ", missing);
            }
            return error.getMessage() == null ? "" : error.getMessage();
        }

        private String traceOf(JShellException error) {
            StringBuilder text = new StringBuilder();
            String before = "";
            for (Throwable each = error; each instanceof JShellException; each = each.getCause()) {
                String message = messageOf((JShellException) each);
                text.append(before).append(nameOf((JShellException) each)).append(message.isEmpty() ? "" : ": " + message);
                for (StackTraceElement frame : each.getStackTrace()) text.append("\n    at ").append(frameOf(frame));
                before = "\nCaused by: ";
            }
            return text.toString();
        }

        private String frameOf(StackTraceElement frame) {
            String file = frame.getFileName();
            if (file == null || !file.startsWith("#")) return frame.toString();
            String id = file.substring(1);
            String place = names.getOrDefault(id, file) + ", line " + (frame.getLineNumber() + lines.getOrDefault(id, 0));
            // What is outside of methods is in one of JShell's.
            boolean isOurs = frame.getMethodName().isEmpty() || frame.getMethodName().equals("do_it$");
            String type = frame.getClassName().isEmpty() ? "" : frame.getClassName() + ".";
            return isOurs ? place : type + frame.getMethodName() + " (" + place + ")";
        }

        private void show(String value) {
            String head = "text/plain\n";
            byte[] form = utf8(head + value);
            if (form.length > MOST_PAYLOAD) host.tell("omitted", utf8(head + (form.length - head.length())));
            else host.tell("text", form);
            host.tell("result", utf8("main"));
        }

        private void fail(String name, String value, String trace) {
            host.tell("error_name", bounded(name));
            host.tell("error_value", bounded(value));
            host.tell("error", bounded(trace));
        }

        private static byte[] bounded(String text) {
            byte[] whole = utf8(text);
            return whole.length > MOST_PAYLOAD / 4 ? Arrays.copyOf(whole, MOST_PAYLOAD / 4) : whole;
        }
    }
}
