//! Modules of kernels, and the kernels that are known: those that divide.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::arithmetic;
use crate::devices::current;
use crate::work::{Local, Task};
use crate::world::{Handle, INVALID_VALUE, Kind, Out, functions};

/// `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: c_int = 500;

/// Elements to be divided, of one of NCCL's types.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    pub(crate) at: usize,
    count: usize,
    dtype: c_int,
    by: f64,
}

impl Division {
    pub(crate) fn bytes(&self) -> usize {
        self.count * arithmetic::size(self.dtype).unwrap_or(0)
    }

    pub(crate) fn run(&self, bytes: &mut [u8]) {
        arithmetic::divide(self.dtype, bytes, self.by);
    }
}

/// The type that a kernel of this name divides, as the library numbers it.
fn divided_by(name: &CStr) -> Option<c_int> {
    Some(match name.to_bytes() {
        b"divide_f16" => 6,
        b"divide_f32" => 7,
        b"divide_f64" => 8,
        b"divide_bf16" => 9,
        b"divide_f8e4m3" => 10,
        b"divide_f8e5m2" => 11,
        _ => return None,
    })
}

functions! {
    fn cuModuleLoadData(module: Out<Handle>, image: *const c_char) |world| {
        current()?;
        // SAFETY: The caller passes a text that ends with zero.
        let text = unsafe { CStr::from_ptr(image) }.to_string_lossy().into_owned();
        let handle = world.make(Kind::Module);
        world.modules.insert(handle, text);
        module.put(handle);
        Ok(())
    }
    fn cuModuleGetFunction(function: Out<*const c_char>, module: Handle, name: *const c_char) |world| {
        world.check(module, Kind::Module)?;
        // SAFETY: The caller passes a text that ends with zero.
        let wanted = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let text = world.modules.get(&module).ok_or(INVALID_VALUE)?;
        if !text.contains(&format!(".entry {wanted}(.param .u64 data, .param .u64 count, .param .f64 by)")) {
            return Err(NOT_FOUND);
        }
        // Functions are their names, which are constants of the caller.
        function.put(name);
        Ok(())
    }
    fn cuFuncGetName(name: Out<*const c_char>, function: *const c_char) |_world| {
        name.put(function);
        Ok(())
    }
    fn cuLaunchKernel(
        function: *const c_char,
        gx: c_uint,
        _gy: c_uint,
        _gz: c_uint,
        bx: c_uint,
        _by: c_uint,
        _bz: c_uint,
        _shared: c_uint,
        stream: Handle,
        parameters: *const *const c_void,
        _extra: *mut *mut c_void,
    ) |world| {
        current()?;
        world.check(stream, Kind::Stream)?;
        if gx == 0 || bx == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: Functions are their names, as `cuModuleGetFunction` gave them.
        let name = unsafe { CStr::from_ptr(function) };
        let dtype = divided_by(name).ok_or(NOT_FOUND)?;
        // SAFETY: The kernels that divide take three parameters, as their text says.
        let [at, count, by] = unsafe { *parameters.cast::<[*const c_void; 3]>() };
        // SAFETY: The first is an address.
        let at = unsafe { *at.cast::<u64>() };
        // SAFETY: The second is a count.
        let count = unsafe { *count.cast::<u64>() };
        // SAFETY: The third is a double.
        let by = unsafe { *by.cast::<f64>() };
        let (Ok(at), Ok(count)) = (usize::try_from(at), usize::try_from(count)) else {
            return Err(INVALID_VALUE);
        };
        world.note(format_args!("kernel={} at={at} count={count} by={by}", name.to_string_lossy()));
        world.submit(stream, Task::Local(Local::Divide(Division { at, count, dtype, by })), function)
    }
}
