//! The engine's exports, and values of JavaScript by their handles in its memory.

use wasmtime::{AsContextMut, Instance, Memory, Store, TypedFunc};

use super::super::super::command::CommandState;

/// A value of JavaScript, in memory of the engine, of which whoever has the handle is the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JsHandle(pub(super) u32);

/// The engine's functions.
#[derive(Clone)]
pub(super) struct QuickJs {
    memory: Memory,
    initialize: TypedFunc<(), ()>,
    init: TypedFunc<(), u32>,
    allocate: TypedFunc<u32, u32>,
    free: TypedFunc<u32, ()>,
    free_value: TypedFunc<u32, ()>,
    free_text: TypedFunc<u32, ()>,
    evaluate: TypedFunc<(u32, u32, u32, u32), u32>,
    call: TypedFunc<(u32, u32, u32, u32), u32>,
    new_string: TypedFunc<(u32, u32), u32>,
    new_number: TypedFunc<f64, u32>,
    new_object: TypedFunc<(), u32>,
    new_bytes: TypedFunc<(u32, u32), u32>,
    new_host_function: TypedFunc<(u32, u32, u32), u32>,
    undefined: TypedFunc<(), u32>,
    number: TypedFunc<u32, f64>,
    text: TypedFunc<(u32, u32), u32>,
    buffer: TypedFunc<(u32, u32), u32>,
    property: TypedFunc<(u32, u32), u32>,
    set_property: TypedFunc<(u32, u32, u32), u32>,
    identity: TypedFunc<u32, u32>,
    is_exception: TypedFunc<u32, u32>,
    exception: TypedFunc<(), u32>,
    has_job: TypedFunc<(), u32>,
    run_job: TypedFunc<(), u32>,
    max_stack: TypedFunc<u32, ()>,
    track_rejections: TypedFunc<u32, ()>,
    load_modules: TypedFunc<u32, ()>,
}

/// How much text or bytes one value has at most: what the engine can have itself.
const MAX_VALUE: usize = 1 << 30;

type Answer<T> = wasmtime::Result<T>;

impl QuickJs {
    pub(super) fn of(instance: &Instance, store: &mut Store<CommandState>) -> Answer<Self> {
        macro_rules! export {
            ($name:literal) => {
                instance.get_typed_func(&mut *store, $name)?
            };
        }
        let memory = instance.get_memory(&mut *store, "memory");
        Ok(Self {
            memory: memory.ok_or_else(|| wasmtime::Error::msg("no memory"))?,
            initialize: export!("_initialize"),
            init: export!("qjs_init"),
            allocate: export!("wasm_malloc"),
            free: export!("wasm_free"),
            free_value: export!("qjs_free_value"),
            free_text: export!("qjs_free_cstring"),
            evaluate: export!("qjs_eval"),
            call: export!("qjs_call"),
            new_string: export!("qjs_new_string"),
            new_number: export!("qjs_new_number"),
            new_object: export!("qjs_new_object"),
            new_bytes: export!("qjs_new_uint8_array"),
            new_host_function: export!("qjs_new_host_function"),
            undefined: export!("qjs_get_undefined"),
            number: export!("qjs_get_float64"),
            text: export!("qjs_get_string_len"),
            buffer: export!("qjs_get_array_buffer"),
            property: export!("qjs_get_prop_string"),
            set_property: export!("qjs_set_prop_string"),
            identity: export!("qjs_get_value_ptr"),
            is_exception: export!("qjs_is_exception"),
            exception: export!("qjs_get_exception"),
            has_job: export!("qjs_is_job_pending"),
            run_job: export!("qjs_execute_pending_job"),
            max_stack: export!("qjs_set_max_stack_size"),
            track_rejections: export!("qjs_set_promise_rejection_handler"),
            load_modules: export!("qjs_set_module_loader"),
        })
    }

    /// Makes the engine's runtime, with all that is asked of us.
    pub(super) fn begin(&self, store: &mut Store<CommandState>, stack: u32) -> Answer<()> {
        self.initialize.call(&mut *store, ())?;
        if self.init.call(&mut *store, ())? != 0 {
            return Err(wasmtime::Error::msg("the engine did not begin"));
        }
        self.max_stack.call(&mut *store, stack)?;
        self.track_rejections.call(&mut *store, 1)?;
        self.load_modules.call(&mut *store, 1)
    }

    pub(super) fn write(
        &self,
        at: &mut impl AsContextMut<Data = CommandState>,
        place: u32,
        bytes: &[u8],
    ) -> Answer<()> {
        Ok(self.memory.write(&mut *at, usize::try_from(place)?, bytes)?)
    }

    /// Bytes of the engine's memory.
    pub(super) fn read(
        &self,
        at: &mut impl AsContextMut<Data = CommandState>,
        place: u32,
        length: u32,
    ) -> Answer<Vec<u8>> {
        let (place, length) = (usize::try_from(place)?, usize::try_from(length)?);
        let memory = self.memory.data(at.as_context_mut());
        let bytes = place.checked_add(length).and_then(|end| memory.get(place..end));
        let bytes = bytes.ok_or_else(|| wasmtime::Error::msg("a value outside of memory"))?;
        Ok(bytes.to_vec())
    }

    fn read_u32(&self, at: &mut impl AsContextMut<Data = CommandState>, place: u32) -> Answer<u32> {
        let bytes = self.read(at, place, 4)?;
        let bytes: [u8; 4] = bytes.as_slice().try_into()?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Text that ends with a zero.
    pub(super) fn c_string(&self, at: &mut impl AsContextMut<Data = CommandState>, place: u32) -> Answer<Vec<u8>> {
        let memory = self.memory.data(at.as_context_mut());
        let text = memory.get(usize::try_from(place)?..).unwrap_or_default();
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        Ok(text.get(..end).unwrap_or_default().to_vec())
    }

    /// Memory of the engine with these bytes and a zero behind them.
    pub(super) fn place_c_string(&self, at: &mut impl AsContextMut<Data = CommandState>, bytes: &[u8]) -> Answer<u32> {
        if bytes.len() > MAX_VALUE {
            return Err(wasmtime::Error::msg("more text than there is memory"));
        }
        let place = self.allocate.call(&mut *at, u32::try_from(bytes.len())? + 1)?;
        if place == 0 {
            return Err(wasmtime::Error::msg("no memory is left"));
        }
        self.write(&mut *at, place, bytes)?;
        self.write(&mut *at, place + u32::try_from(bytes.len())?, &[0])?;
        Ok(place)
    }

    /// Has `make` make something of these bytes.
    fn with_bytes(
        &self,
        at: &mut impl AsContextMut<Data = CommandState>,
        bytes: &[u8],
        make: &TypedFunc<(u32, u32), u32>,
    ) -> Answer<JsHandle> {
        let place = self.place_c_string(&mut *at, bytes)?;
        let made = make.call(&mut *at, (place, u32::try_from(bytes.len())?))?;
        self.free.call(&mut *at, place)?;
        Ok(JsHandle(made))
    }

    pub(super) fn new_string(&self, at: &mut impl AsContextMut<Data = CommandState>, text: &[u8]) -> Answer<JsHandle> {
        self.with_bytes(at, text, &self.new_string)
    }

    pub(super) fn new_bytes(&self, at: &mut impl AsContextMut<Data = CommandState>, bytes: &[u8]) -> Answer<JsHandle> {
        self.with_bytes(at, bytes, &self.new_bytes)
    }

    pub(super) fn new_number(&self, at: &mut impl AsContextMut<Data = CommandState>, number: f64) -> Answer<JsHandle> {
        self.new_number.call(&mut *at, number).map(JsHandle)
    }

    pub(super) fn undefined(&self, at: &mut impl AsContextMut<Data = CommandState>) -> Answer<JsHandle> {
        self.undefined.call(&mut *at, ()).map(JsHandle)
    }

    pub(super) fn new_object(&self, at: &mut impl AsContextMut<Data = CommandState>) -> Answer<JsHandle> {
        self.new_object.call(&mut *at, ()).map(JsHandle)
    }

    /// A function that is a call of ours of this name.
    pub(super) fn new_host_function(
        &self,
        at: &mut impl AsContextMut<Data = CommandState>,
        name: &str,
    ) -> Answer<JsHandle> {
        let place = self.place_c_string(&mut *at, name.as_bytes())?;
        let length = u32::try_from(name.len())?;
        let made = self.new_host_function.call(&mut *at, (place, length, 0))?;
        self.free.call(&mut *at, place)?;
        Ok(JsHandle(made))
    }

    pub(super) fn property(
        &self,
        at: &mut impl AsContextMut<Data = CommandState>,
        object: JsHandle,
        name: &str,
    ) -> Answer<JsHandle> {
        let place = self.place_c_string(&mut *at, name.as_bytes())?;
        let found = self.property.call(&mut *at, (object.0, place))?;
        self.free.call(&mut *at, place)?;
        Ok(JsHandle(found))
    }

    pub(super) fn set_property(
        &self,
        at: &mut impl AsContextMut<Data = CommandState>,
        object: JsHandle,
        name: &str,
        value: JsHandle,
    ) -> Answer<()> {
        let place = self.place_c_string(&mut *at, name.as_bytes())?;
        self.set_property.call(&mut *at, (object.0, place, value.0))?;
        self.free.call(&mut *at, place)
    }

    pub(super) fn number(&self, at: &mut impl AsContextMut<Data = CommandState>, value: JsHandle) -> Answer<f64> {
        self.number.call(&mut *at, value.0)
    }

    /// The value as text.
    pub(super) fn text(&self, at: &mut impl AsContextMut<Data = CommandState>, value: JsHandle) -> Answer<Vec<u8>> {
        let length_at = self.allocate.call(&mut *at, 4)?;
        let place = self.text.call(&mut *at, (value.0, length_at))?;
        let length = self.read_u32(&mut *at, length_at)?;
        self.free.call(&mut *at, length_at)?;
        if place == 0 {
            return Ok(Vec::new());
        }
        let text = self.read(&mut *at, place, length)?;
        self.free_text.call(&mut *at, place)?;
        Ok(text)
    }

    /// The bytes of an `ArrayBuffer`.
    pub(super) fn bytes(&self, at: &mut impl AsContextMut<Data = CommandState>, value: JsHandle) -> Answer<Vec<u8>> {
        let length_at = self.allocate.call(&mut *at, 4)?;
        self.write(&mut *at, length_at, &[0; 4])?;
        let place = self.buffer.call(&mut *at, (value.0, length_at))?;
        let length = self.read_u32(&mut *at, length_at)?;
        self.free.call(&mut *at, length_at)?;
        match place {
            0 => Ok(Vec::new()),
            place => self.read(&mut *at, place, length),
        }
    }

    /// What an object is recognised by.
    pub(super) fn identity(&self, at: &mut impl AsContextMut<Data = CommandState>, value: JsHandle) -> Answer<u32> {
        self.identity.call(&mut *at, value.0)
    }

    pub(super) fn release(&self, at: &mut impl AsContextMut<Data = CommandState>, value: JsHandle) -> Answer<()> {
        self.free_value.call(&mut *at, value.0)
    }

    /// Evaluates code; what it is, or nothing if it threw.
    pub(super) fn evaluate(
        &self,
        at: &mut impl AsContextMut<Data = CommandState>,
        code: &[u8],
        name: &[u8],
        how: u32,
    ) -> Answer<Option<JsHandle>> {
        let (code_at, name_at) = (
            self.place_c_string(&mut *at, code)?,
            self.place_c_string(&mut *at, name)?,
        );
        let length = u32::try_from(code.len())?;
        let value = self.evaluate.call(&mut *at, (code_at, length, name_at, how))?;
        self.free.call(&mut *at, code_at)?;
        self.free.call(&mut *at, name_at)?;
        self.unless_thrown(at, value)
    }

    /// Calls a function; what it answers, or nothing if it threw.
    pub(super) fn call(
        &self,
        at: &mut impl AsContextMut<Data = CommandState>,
        function: JsHandle,
        arguments: &[JsHandle],
    ) -> Answer<Option<JsHandle>> {
        let list: Vec<u8> = arguments.iter().flat_map(|value| value.0.to_le_bytes()).collect();
        let place = self.place_c_string(&mut *at, &list)?;
        let this = self.undefined(&mut *at)?;
        let count = u32::try_from(arguments.len())?;
        let value = self.call.call(&mut *at, (function.0, this.0, count, place))?;
        self.free.call(&mut *at, place)?;
        self.release(&mut *at, this)?;
        for argument in arguments {
            self.release(&mut *at, *argument)?;
        }
        self.unless_thrown(at, value)
    }

    fn unless_thrown(&self, at: &mut impl AsContextMut<Data = CommandState>, value: u32) -> Answer<Option<JsHandle>> {
        if self.is_exception.call(&mut *at, value)? == 0 {
            return Ok(Some(JsHandle(value)));
        }
        self.release(at, JsHandle(value))?;
        Ok(None)
    }

    /// What was thrown last.
    pub(super) fn exception(&self, at: &mut impl AsContextMut<Data = CommandState>) -> Answer<JsHandle> {
        self.exception.call(&mut *at, ()).map(JsHandle)
    }

    pub(super) fn has_job(&self, at: &mut impl AsContextMut<Data = CommandState>) -> Answer<bool> {
        Ok(self.has_job.call(&mut *at, ())? != 0)
    }

    /// Carries out what a promise has to do next; whether it threw nothing.
    pub(super) fn run_job(&self, at: &mut impl AsContextMut<Data = CommandState>) -> Answer<bool> {
        Ok(self.run_job.call(&mut *at, ())?.cast_signed() >= 0)
    }
}
