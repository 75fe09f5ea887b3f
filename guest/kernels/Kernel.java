import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import sun.misc.Signal;

/**
 * The Java kernel of the code interpreter. It runs inside the sandbox: words in base64 on standard input (the code, then names
 * and values of variables), JSON lines with a marker on standard output. The code runs in this process, through JShell.
 */
public class Kernel {
  private static final String MARK = "\u001e" + System.getenv("RINGFENCE_KERNEL") + " ";
  private static final PrintStream ANSWERS = new PrintStream(System.out, true, StandardCharsets.UTF_8);
  private static final PrintStream ERRORS = new PrintStream(System.err, true, StandardCharsets.UTF_8);
  private static final String[] IMPORTS = {"java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.util.*",
    "java.util.concurrent.*", "java.util.function.*", "java.util.regex.*", "java.util.stream.*"};

  private final JShell shell;
  private int count = 0;
  private volatile boolean isInterrupted = false;

  private Kernel(JShell shell) {
    this.shell = shell;
  }

  public static void main(String[] arguments) throws Exception {
    // Java has no variables of the environment that can be set: as with E2B, they are properties.
    System.getenv().forEach((name, value) -> {
      if (System.getProperty(name) == null && !name.equals("RINGFENCE_KERNEL")) System.setProperty(name, value);
    });
    System.setOut(new PrintStream(new Output("stdout"), true, StandardCharsets.UTF_8));
    System.setErr(new PrintStream(new Output("stderr"), true, StandardCharsets.UTF_8));
    try (JShell shell = JShell.builder().executionEngine("local").out(System.out).err(System.err).build()) {
      for (String name : IMPORTS) shell.eval("import " + name + ";");
      Kernel kernel = new Kernel(shell);
      Signal.handle(new Signal("INT"), signal -> kernel.interrupt());
      finish("ready");
      kernel.serve();
    }
    System.exit(0);
  }

  private void serve() throws Exception {
    BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = requests.readLine(); line != null; line = requests.readLine()) {
      List<String> words = new ArrayList<>();
      for (String word : line.split(" ", -1)) words.add(new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8));
      execute(words);
    }
  }

  private void interrupt() {
    isInterrupted = true;
    shell.stop();
  }

  /** Runs one piece of code with properties that are set for it alone. */
  private void execute(List<String> words) {
    Map<String, String> before = new HashMap<>();
    for (int at = 1; at + 1 < words.size(); at += 2) {
      before.put(words.get(at), System.getProperty(words.get(at)));
      System.setProperty(words.get(at), words.get(at + 1));
    }
    isInterrupted = false;
    run(words.get(0));
    System.out.flush();
    System.err.flush();
    before.forEach((name, value) -> {
      if (value == null) System.clearProperty(name);
      else System.setProperty(name, value);
    });
    send("number_of_executions", "execution_count", ++count);
    finish("end_of_execution");
  }

  /** Runs statement by statement, and shows the value of the last one. */
  private void run(String code) {
    SnippetEvent last = null;
    String rest = code;
    while (!rest.isBlank()) {
      SourceCodeAnalysis.CompletionInfo part = shell.sourceCodeAnalysis().analyzeCompletion(rest);
      String source = part.source() == null ? rest : part.source();
      for (SnippetEvent event : shell.eval(source)) {
        if (event.causeSnippet() != null) continue;
        if (hasFailed(event)) return;
        last = event;
      }
      rest = part.remaining() == null ? "" : part.remaining();
    }
    if (last != null && isShown(last)) send("result", "is_main_result", true, "text", last.value());
  }

  /** Declarations and assignments have values too, which nobody asked for. */
  private static boolean isShown(SnippetEvent event) {
    Snippet.SubKind kind = event.snippet().subKind();
    return event.value() != null && !event.value().isEmpty() && !event.value().equals("null")
        && (kind == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND || kind == Snippet.SubKind.VAR_VALUE_SUBKIND
            || kind == Snippet.SubKind.OTHER_EXPRESSION_SUBKIND);
  }

  private boolean hasFailed(SnippetEvent event) {
    if (isInterrupted) {
      fail("Interrupted", "interrupted", "");
      return true;
    }
    JShellException thrown = event.exception();
    if (thrown instanceof EvalException) {
      EvalException known = (EvalException) thrown;
      StringBuilder trace = new StringBuilder(known.getExceptionClassName() + ": " + known.getMessage());
      for (StackTraceElement frame : known.getStackTrace()) trace.append("\n    at ").append(frame);
      fail(known.getExceptionClassName().replaceFirst(".*\\.", ""), String.valueOf(known.getMessage()), trace.toString());
      return true;
    }
    if (event.status() != Snippet.Status.REJECTED && thrown == null) return false;
    String message = shell.diagnostics(event.snippet()).map(one -> one.getMessage(null)).findFirst().orElse(String.valueOf(thrown));
    fail("CompilationError", message, message + "\n" + event.snippet().source());
    return true;
  }

  private static void fail(String name, String value, String trace) {
    send("error", "name", name, "value", value, "traceback", trace);
  }

  /** Sends a message that ends something; the marker on standard error tells that nothing more comes there. */
  private static void finish(String type) {
    ERRORS.print(MARK + "\n");
    ERRORS.flush();
    send(type);
  }

  /** Sends a message with its fields, given as names and values. */
  private static void send(String type, Object... fields) {
    StringBuilder line = new StringBuilder(MARK).append("{\"type\":").append(quoted(type));
    for (int at = 0; at < fields.length; at += 2) {
      Object value = fields[at + 1];
      line.append(",").append(quoted((String) fields[at])).append(":").append(value instanceof String ? quoted((String) value) : value);
    }
    synchronized (ANSWERS) {
      ANSWERS.print(line.append("}\n"));
      ANSWERS.flush();
    }
  }

  private static String quoted(String text) {
    StringBuilder out = new StringBuilder("\"");
    for (char one : text.toCharArray()) {
      if (one == '"' || one == '\\') out.append('\\').append(one);
      else if (one < 0x20 || Character.isSurrogate(one) || one == 0x2028) out.append(String.format("\\u%04x", (int) one));
      else out.append(one);
    }
    return out.append('"').toString();
  }

  /** Standard output or error of the code, sent as messages. */
  private static final class Output extends OutputStream {
    private final String stream;
    private final java.io.ByteArrayOutputStream waiting = new java.io.ByteArrayOutputStream();

    Output(String stream) {
      this.stream = stream;
    }

    @Override
    public synchronized void write(int one) {
      waiting.write(one);
      if (one == '\n' || waiting.size() > 8192) flush();
    }

    @Override
    public synchronized void write(byte[] bytes, int from, int length) {
      waiting.write(bytes, from, length);
      if (waiting.size() > 8192) flush();
    }

    @Override
    public synchronized void flush() {
      if (waiting.size() == 0) return;
      String text = waiting.toString(StandardCharsets.UTF_8);
      waiting.reset();
      send(stream, "text", text, "timestamp", System.currentTimeMillis() * 1000);
    }
  }
}
