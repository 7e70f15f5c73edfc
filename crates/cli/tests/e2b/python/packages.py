"""What real packages make, by way of both halves of E2B's code interpreter SDK: numpy, pandas, matplotlib, scipy,
scikit-learn and IPython, in the template that the SDK asks for.
"""

import base64

from e2b.exceptions import TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox
from e2b_code_interpreter import charts

from cases import case, equal, raises, raises_later, says

FIGURE = "import io\nimport numpy as np\nimport matplotlib.pyplot as plt\n"


def only(execution):
    assert execution.error is None, execution.error.traceback
    (result,) = execution.results
    return result


def begins(encoded, magic):
    found = base64.b64decode(encoded)[: len(magic)]
    equal(found, magic)


def chart_of(execution, kind, wanted):
    """The chart of the only figure, which is of this class and this type, and a picture, too."""
    result = only(execution)
    begins(result.png, b"\x89PNG\r\n")
    assert type(result.chart) is kind, result.chart
    equal(result.chart.type, wanted)
    return result.chart


def lines(execution):
    chart = chart_of(execution, charts.LineChart, charts.ChartType.LINE)
    equal((chart.title, chart.x_label, chart.x_unit), ("Waves", "Time (s)", "s"))
    equal((chart.y_label, chart.y_unit, chart.y_scale), ("Height (m)", "m", charts.ScaleType.LINEAR))
    equal([line.label for line in chart.elements], ["sine", "cosine"])
    equal([len(line.points) for line in chart.elements], [50, 50])
    equal((chart.elements[0].points[0], chart.elements[1].points[0]), ((0, 0), (0, 1)))
    equal(len(chart.x_ticks), len(chart.x_tick_labels))
    assert all(isinstance(tick, float) for tick in chart.y_ticks), chart.y_ticks


def days(execution):
    chart = chart_of(execution, charts.LineChart, charts.ChartType.LINE)
    equal((chart.x_scale, chart.y_scale), (charts.ScaleType.DATETIME, charts.ScaleType.LOG))
    equal([point[1] for point in chart.elements[0].points], [1, 10, 100])
    says(chart.elements[0].points[0][0], "2024-01-01")


def points(execution):
    chart = chart_of(execution, charts.ScatterChart, charts.ChartType.SCATTER)
    equal([group.label for group in chart.elements], ["a", "b"])
    equal(chart.elements[0].points, [(1, 2), (3, 4)])


def bars(execution):
    chart = chart_of(execution, charts.BarChart, charts.ChartType.BAR)
    equal((chart.title, chart.x_label, chart.y_label), ("Books", "Author", "Sold"))
    equal([(bar.label, bar.value) for bar in chart.elements], [("Ann", 100), ("Bob", 200), ("Cid", 300)])


def groups(execution):
    chart = chart_of(execution, charts.BarChart, charts.ChartType.BAR)
    found = [(bar.label, bar.group, bar.value) for bar in chart.elements]
    equal(found, [("x", "u", 1), ("y", "u", 2), ("x", "v", 3), ("y", "v", 4)])


def slices(execution):
    chart = chart_of(execution, charts.PieChart, charts.ChartType.PIE)
    equal([(one.label, one.radius) for one in chart.elements], [("a", 1), ("b", 1)])
    equal([round(one.angle) for one in chart.elements], [90, 270])


def boxes(execution):
    chart = chart_of(execution, charts.BoxAndWhiskerChart, charts.ChartType.BOX_AND_WHISKER)
    first, second = chart.elements
    equal((first.label, first.min, first.median, first.max, first.outliers), ("A", 1, 3, 4, [20]))
    equal((first.first_quartile, first.third_quartile), (2, 4))
    equal((second.label, second.min, second.max, second.outliers), ("B", 2, 4, []))


def several(execution):
    chart = chart_of(execution, charts.SuperChart, charts.ChartType.SUPERCHART)
    equal(chart.title, "Both")
    equal([(type(one), one.title) for one in chart.elements], [(charts.ScatterChart, "left"), (charts.BarChart, "right")])


def no_chart(execution):
    chart_of(execution, charts.Chart, charts.ChartType.UNKNOWN)


def frame(execution):
    result = only(execution)
    equal(result.is_main_result, True)
    says(result.html, "<table", "Ann")
    says(result.text, "Ann")
    equal(result.data, {"name": ["Ann", "Bob"], "height": [1.7, None], "born": ["2000-01-02T00:00:00", None]})
    assert {"text", "html", "data"} <= set(result.formats()), result.formats()


def column(execution):
    says(only(execution).text, "0    1", "dtype: int64")


def model(execution):
    result = only(execution)
    says(result.text, "LinearRegression()")
    says(result.html, "LinearRegression")
    equal("".join(execution.logs.stdout), "[2.] 3.0\n")


def forms(execution):
    assert execution.error is None, execution.error.traceback
    shown = {form: result for result in execution.results for form in result.formats() if form != "text"}
    equal((shown["html"].html, shown["markdown"].markdown), ("<b>v</b>", "*v*"))
    equal((shown["latex"].latex, shown["javascript"].javascript), ("$\\displaystyle v^2$", "v()"))
    equal(shown["json"].json, {"v": [1, None]})
    says(shown["svg"].svg, "<svg", "</svg>")
    begins(shown["png"].png, b"\x89PNG\r\n")
    begins(shown["jpeg"].jpeg, b"\xff\xd8\xff")
    begins(shown["pdf"].pdf, b"%PDF-")
    equal(shown["application/x-mine"].extra, {"application/x-mine": "mine"})
    equal([result.is_main_result for result in execution.results], [False] * len(execution.results))


def error(execution):
    equal((execution.error.name, execution.results), ("KeyError", []))
    says(execution.error.value, "nothing")
    says(execution.error.traceback, "pandas", "d['nothing']", "KeyError: 'nothing'")
    assert "offleash" not in execution.error.traceback, execution.error.traceback


def syntax(execution):
    equal(execution.error.name, "SyntaxError")
    says(execution.error.traceback, "x = = 1")


def of_ipython(execution):
    assert execution.error is None, execution.error.traceback
    equal("".join(execution.logs.stdout), "3\nof a shell\n")
    equal(execution.text, "6")


# In one context, one after the other.
CELLS = [
    (
        FIGURE + "x = np.linspace(0, 6, 50)\nplt.plot(x, np.sin(x), label='sine')\nplt.plot(x, np.cos(x), label='cosine')\n"
        "plt.xlabel('Time (s)')\nplt.ylabel('Height (m)')\nplt.title('Waves')\nplt.show()",
        lines,
    ),
    (
        "import pandas as pd\nplt.plot(pd.date_range('2024-01-01', periods=3), [1, 10, 100])\nplt.yscale('log')\nplt.show()",
        days,
    ),
    ("plt.scatter([1, 3], [2, 4], label='a')\nplt.scatter([5], [6], label='b')\nplt.legend()\nplt.show()", points),
    (
        "plt.bar(['Ann', 'Bob', 'Cid'], [100, 200, 300])\nplt.xlabel('Author')\nplt.ylabel('Sold')\nplt.title('Books')\n"
        "plt.show()",
        bars,
    ),
    ("pd.DataFrame({'u': [1, 2], 'v': [3, 4]}, index=['x', 'y']).plot.bar()\nplt.show()", groups),
    ("plt.pie([1, 3], labels=['a', 'b'])\nplt.show()", slices),
    ("plt.boxplot([[1, 2, 3, 4, 20], [2, 3, 4]])\nplt.xticks([1, 2], ['A', 'B'])\nplt.show()", boxes),
    (
        "figure, (left, right) = plt.subplots(1, 2)\nfigure.suptitle('Both')\nleft.scatter([1], [2])\nleft.set_title('left')\n"
        "right.bar(['x'], [1])\nright.set_title('right')\nplt.show()",
        several,
    ),
    ("plt.imshow(np.eye(3))\nplt.show()", no_chart),
    (
        "d = pd.DataFrame({'name': ['Ann', 'Bob'], 'height': [1.7, np.nan], 'born': pd.to_datetime(['2000-01-02', None])})\nd",
        frame,
    ),
    ("pd.Series([1, 2])", column),
    (
        "from scipy.stats import linregress\nfrom sklearn.linear_model import LinearRegression\n"
        "x = np.arange(5.0)\nassert round(linregress(x, 2 * x + 3).slope, 6) == 2\n"
        "m = LinearRegression().fit(x.reshape(-1, 1), 2 * x + 3)\nprint(m.coef_.round(6), round(m.intercept_, 6))\nm",
        model,
    ),
    (
        "from IPython.display import HTML, JSON, SVG, Image, Javascript, Latex, Markdown, Math, display\n"
        "figure = plt.figure()\nfigure.add_subplot().plot([1, 2])\n"
        "def saved(kind):\n    buffer = io.BytesIO()\n    figure.savefig(buffer, format=kind)\n    return buffer.getvalue()\n"
        "import base64\nencoded = lambda kind: base64.b64encode(saved(kind)).decode()\n"
        "display(HTML('<b>v</b>'), Markdown('*v*'), Math('v^2'), Javascript('v()'), JSON({'v': [1, None]}))\n"
        "display(SVG(saved('svg')), Image(saved('png')), Image(saved('jpeg')))\n"
        "display({'application/pdf': encoded('pdf')}, raw=True)\n"
        "display({'application/x-mine': 'mine'}, raw=True)\nplt.close(figure)",
        forms,
    ),
    ("d['nothing']", error),
    ("x = = 1", syntax),
    ("%matplotlib inline\ny = 3\nprint(y)\n!echo of a shell\ny * 2", of_ipython),
]

SEEN = [
    ("out", "a\n"),
    ("err", "b\n"),
    ("result", "1"),
    ("result", "2"),
    ("out", "c\n"),
    ("error", "ZeroDivisionError"),
]
TELLS = (
    "import sys\nprint('a')\nprint('b', file=sys.stderr)\ndisplay(1)\ndisplay(2)\nprint('c')\nimport pandas\n"
    "pandas.DataFrame({'a': [1]}).a.map(lambda x: x / 0)"
)


def listeners(seen):
    return {
        "on_stdout": lambda message: seen.append(("out", message.line)),
        "on_stderr": lambda message: seen.append(("err", message.line)),
        "on_result": lambda result: seen.append(("result", result.text)),
        "on_error": lambda error: seen.append(("error", error.name)),
    }


@case
def are_shown():
    with Sandbox.create() as sandbox:
        for cell, check in CELLS:
            check(sandbox.run_code(cell))


@case
def tell_as_they_run():
    with Sandbox.create() as sandbox:
        seen = []
        execution = sandbox.run_code(TELLS, **listeners(seen))
        equal(seen, SEEN)
        equal((execution.logs.stdout, execution.logs.stderr), (["a\n", "c\n"], ["b\n"]))
        # In the middle of what is written in C.
        busy = "import numpy\nkept = 5\nwhile True: numpy.linalg.svd(numpy.random.rand(200, 200))"
        raises(TimeoutException, sandbox.run_code, busy, timeout=2)
        equal(sandbox.run_code("kept").text, "5")


@case
async def are_shown_to_those_that_do_not_wait():
    sandbox = await AsyncSandbox.create()
    try:
        for cell, check in CELLS:
            check(await sandbox.run_code(cell))
    finally:
        await sandbox.kill()


@case
async def tell_those_that_do_not_wait():
    sandbox = await AsyncSandbox.create()
    try:
        seen, later = [], []
        equal((await sandbox.run_code(TELLS, **listeners(seen))).error.name, "ZeroDivisionError")
        equal(seen, SEEN)

        async def note(message):
            later.append(message.line)

        await sandbox.run_code("print('later')", on_stdout=note)
        equal(later, ["later\n"])
        await raises_later(TimeoutException, sandbox.run_code("while True: pass", timeout=2))
        equal((await sandbox.run_code("1 + 1")).text, "2")
    finally:
        await sandbox.kill()
