"""How objects of cells are pickled: the first half of what the driver of Python is given to save and load (`state.py`).

One pickle holds all variables, so that what two of them share is shared again. Functions and classes that no module has are
in it by value. cloudpickle is not used where it is there: its functions get globals of their own, so that one that assigns
to a variable of the context would assign to nothing that the next cell sees; here they get the context's namespace.

Python 3.9 and newer.
"""

import enum
import functools
import gc
import marshal
from _pickle import Pickler

# Where functions of ours are found when a state is read.
HELPERS = "offleash_state"
# What every namespace has.
NOT_OF_CELLS = {"__builtin__", "__builtins__", "__doc__", "__loader__", "__name__", "__package__", "__spec__"}
# What enumerations make by themselves.
OF_ENUM = {"_generate_next_value_", "_member_map_", "_member_names_", "_member_type_", "_new_member_", "_value2member_map_"}
IS_HEAP_TYPE = 1 << 9
VIEWS = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}

# What makes objects again.


class Scope:
    """Its attributes are the globals of functions that belong to no module."""


def helper(name):
    return getattr(sys.modules[HELPERS], name)


def make_cell():
    return types.CellType()


def set_cell(cell, content):
    cell.cell_contents = content


def make_function(code, scope, name, closure):
    names = helper("names") if scope is None else vars(scope)
    return types.FunctionType(marshal.loads(code), names, name, None, closure)


def set_function(function, state):
    contents, attributes, own, used = state
    for cell, content in zip(function.__closure__ or (), contents):
        if content:
            cell.cell_contents = content[0]
    for name, value in attributes.items():
        setattr(function, name, value)
    function.__dict__.update(own)
    if used is not None:
        function.__globals__.update(used)


def make_class(meta, name, bases, first):
    # Classes of cells have heard of this one already, and perhaps more than is known here.
    hooks = [
        (one, vars(one)["__init_subclass__"])
        for one in dict.fromkeys(one for base in bases for one in base.__mro__)
        if one.__module__ == "__main__" and "__init_subclass__" in vars(one)
    ]
    for one, _ in hooks:
        type.__setattr__(one, "__init_subclass__", classmethod(lambda *_: None))
    try:
        return types.new_class(name, bases, {"metaclass": meta}, lambda names: names.update(first))
    finally:
        for one, hook in hooks:
            type.__setattr__(one, "__init_subclass__", hook)


def make_enum(meta, name, bases, first, members):
    names = meta.__prepare__(name, bases)
    for one, value in (*first.items(), *members.items()):
        names[one] = value
    return meta.__new__(meta, name, bases, names)


def set_class(made, state):
    attributes, registered = state
    for name, value in attributes.items():
        type.__setattr__(made, name, value)
    for one in registered:
        made.register(one)


def make_cached(function, maxsize, typed):
    return functools.lru_cache(maxsize, typed)(function)


def make_type_variable(name, constraints, bound, covariant, contravariant):
    import typing

    return typing.TypeVar(name, *constraints, bound=bound, covariant=covariant, contravariant=contravariant)


def make_new_type(name, of):
    import typing

    return typing.NewType(name, of)


def view_of(values, kind):
    return getattr(values, kind)()


MAKERS = (
    Scope,
    helper,
    make_cell,
    set_cell,
    make_function,
    set_function,
    make_class,
    make_enum,
    set_class,
    make_cached,
    make_type_variable,
    make_new_type,
    view_of,
)


class Helpers:
    """A module in which `MAKERS` are found, and what there is once in every context."""

    def __init__(self, shell):
        self.module = types.ModuleType(HELPERS)
        for maker in MAKERS:
            maker.__module__ = HELPERS
            setattr(self.module, maker.__name__, maker)
        self.module.names = names_of(shell)
        self.module.main = sys.modules.get("__main__")
        self.module.shell = getattr(shell, "shell", shell)
        self.module.stdout, self.module.stderr = STREAMS
        self.module.stdin = sys.stdin

    def __enter__(self):
        sys.modules[HELPERS] = self.module
        return self.module

    def __exit__(self, *_):
        sys.modules.pop(HELPERS, None)


# What is saved of an object.


class Saver(Pickler):
    def __init__(self, file, helpers, findable):
        super().__init__(file, protocol=5)
        self.names = helpers.names
        self.findable = findable
        self.known = known_objects(helpers)
        # By id; held, so that no other object gets that.
        self.scopes, self.cells = {}, {}

    def reducer_override(self, value):
        kind = type(value)
        if kind is types.FunctionType:
            return self.function(value)
        if isinstance(value, type):
            return self.type(value)
        if id(value) in self.known:
            return self.known[id(value)][1]
        reduce = REDUCERS.get(kind)
        return NotImplemented if reduce is None else reduce(self, value)

    def is_importable(self, value):
        """Whether whoever imports its module finds it there."""
        module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(path, str) or not self.is_findable(module):
            return False
        found = sys.modules.get(module)
        for name in path.split("."):
            found = getattr(found, name, None)
        return found is value

    def is_findable(self, module):
        """Whether a module is one that can be imported somewhere else, too."""
        top = module.partition(".")[0]
        if top not in self.findable:
            self.findable[top] = top != "__main__" and any(has_module(finder, top) for finder in list(sys.meta_path))
        return self.findable[top]

    def module(self, value):
        name = value.__name__
        if self.is_findable(name) and name in sys.modules:
            return importlib.import_module, (name,)
        return types.ModuleType, (name,), {one: made for one, made in vars(value).items() if one not in NOT_OF_CELLS}

    def function(self, value):
        if self.is_importable(value):
            return NotImplemented
        closure = value.__closure__ or ()
        contents = []
        for cell in closure:
            self.cells[id(cell)] = cell
            try:
                contents.append((cell.cell_contents,))
            except ValueError:
                contents.append(())
        attributes = {
            "__qualname__": value.__qualname__,
            "__module__": value.__module__,
            "__doc__": value.__doc__,
            "__defaults__": value.__defaults__,
            "__kwdefaults__": value.__kwdefaults__,
            "__annotations__": value.__annotations__,
        }
        scope, used = self.scope(value)
        made = (marshal.dumps(value.__code__), scope, value.__name__, closure or None)
        return make_function, made, (contents, attributes, dict(value.__dict__), used), None, None, set_function

    def scope(self, value):
        """Where the globals of a function are: nowhere else than those of cells, in a module, or in a scope of their own, and
        what it uses of that."""
        names = value.__globals__
        if names is self.names:
            return None, None
        module = sys.modules.get(names.get("__name__"))
        if module is not None and getattr(module, "__dict__", None) is names:
            return module, None
        _, scope = self.scopes.setdefault(id(names), (names, Scope()))
        wanted = {"__name__", *names_in(value.__code__)}
        if names.get("__builtins__") not in (builtins, vars(builtins)):
            wanted.add("__builtins__")
        return scope, {name: names[name] for name in wanted if name in names}

    def cell(self, value):
        # What is in that of a function comes with the function, which may be in it.
        if id(value) in self.cells:
            return make_cell, ()
        return make_cell, (), value.cell_contents, None, None, set_cell

    def type(self, value):
        if id(value) in self.known:
            return self.known[id(value)][1]
        if not value.__flags__ & IS_HEAP_TYPE or self.is_importable(value):
            return NotImplemented
        attributes, first = {}, {"__module__": value.__module__, "__qualname__": value.__qualname__}
        for name, one in vars(value).items():
            is_own = type(one) in (types.MemberDescriptorType, types.GetSetDescriptorType) and one.__objclass__ is value
            if name in ("__slots__", "__orig_bases__"):
                first[name] = one
            elif not is_own and name not in first and name != "_abc_impl":
                attributes[name] = one
        registered = []
        if "_abc_impl" in vars(value):
            import _abc

            registered = [one for one in (weak() for weak in _abc._get_dump(value)[0]) if one is not None]
        made = (type(value), value.__name__, value.__bases__, first)
        if isinstance(value, enum.EnumMeta):
            members = {name: one._value_ for name, one in value.__members__.items()}
            made = (*made, members)
            attributes = {
                name: one for name, one in attributes.items() if name not in members and name not in OF_ENUM
            }
        maker = make_enum if isinstance(value, enum.EnumMeta) else make_class
        return maker, made, (attributes, registered), None, None, set_class

    def cached(self, value):
        if self.is_importable(value):
            return NotImplemented
        how = value.cache_parameters()
        return make_cached, (value.__wrapped__, how["maxsize"], how["typed"])

    def type_variable(self, value):
        if self.is_importable_by_name(value):
            return NotImplemented
        made = (value.__name__, value.__constraints__, value.__bound__, value.__covariant__, value.__contravariant__)
        return make_type_variable, made

    def new_type(self, value):
        if self.is_importable_by_name(value):
            return NotImplemented
        return make_new_type, (value.__name__, value.__supertype__)

    def is_importable_by_name(self, value):
        module = value.__module__
        return self.is_findable(module) and getattr(sys.modules.get(module), value.__name__, None) is value


def has_module(finder, name):
    try:
        return finder.find_spec(name, None) is not None
    except Exception:
        return False


def names_in(code):
    """The names of globals that code and the functions in it may use."""
    names = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            names |= names_in(one)
    return names


def known_objects(helpers):
    """By id, objects that are there once, and how each is found again."""
    known = {}

    def know(value, reduced):
        known.setdefault(id(value), (value, reduced))

    for name in ("main", "shell", "stdout", "stderr", "stdin"):
        know(getattr(helpers, name), (helper, (name,)))
    for name in dir(types):
        if isinstance(getattr(types, name), type):
            know(getattr(types, name), (getattr, (types, name)))
    for name in ("NoneType", "NotImplementedType", "EllipsisType"):
        # Pickles know them by themselves.
        known.pop(id(getattr(types, name, None)), None)
    # Generators of random numbers of modules are not carried, only what they are.
    for module, name in (("random", "_inst"), ("numpy.random.mtrand", "_rand")):
        if module in sys.modules and hasattr(sys.modules[module], name):
            know(getattr(sys.modules[module], name), (getattr, (sys.modules[module], name)))
    classes = sys.modules.get("dataclasses")
    for name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY", "_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR"):
        if hasattr(classes, name):
            know(getattr(classes, name), (getattr, (classes, name)))
    return known


def reducers():
    import typing

    found = {
        types.ModuleType: Saver.module,
        types.CellType: Saver.cell,
        types.CodeType: lambda _, value: (marshal.loads, (marshal.dumps(value),)),
        types.MappingProxyType: lambda _, value: (types.MappingProxyType, (dict(value),)),
        staticmethod: lambda _, value: (staticmethod, (value.__func__,)),
        classmethod: lambda _, value: (classmethod, (value.__func__,)),
        property: lambda _, value: (property, (value.fget, value.fset, value.fdel, value.__doc__)),
        functools.cached_property: lambda _, value: (
            functools.cached_property,
            (value.func,),
            {"attrname": value.attrname},
        ),
        functools._lru_cache_wrapper: Saver.cached,
        typing.TypeVar: Saver.type_variable,
    }
    if isinstance(typing.NewType, type):
        found[typing.NewType] = Saver.new_type
    for kind, name in VIEWS.items():
        found[kind] = lambda _, value, name=name: (view_of, (gc.get_referents(value)[0], name))
    return found


REDUCERS = reducers()
