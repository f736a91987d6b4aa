//! One GPU: kernels that are compiled when the program starts, and launched in stream order.

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use collectives_core::device::Device;
use collectives_core::dtype::Element;
use collectives_core::error::{Error, ErrorKind, Result, Unsupported};
use collectives_core::kernel;
use collectives_core::stream::Stream;
use collectives_core::tensor::Tensor;
use cudarc::driver::{CudaContext, sys as driver};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};
use cudarc::{cublas, driver as safe};

/// Threads of a block; the kernels rely on it.
const THREADS: u32 = 256;
/// Blocks of a kernel that has an element for each thread, or several.
const BLOCKS: u64 = 1024;

/// A GPU and the kernels for it.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) device: Arc<dyn Device>,
    context: Arc<CudaContext>,
    /// Lasts as long as the process: graphs may hold its functions.
    module: driver::CUmodule,
}

/// One kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel(driver::CUfunction);

/// An argument of a kernel, whose type is that of the parameter.
#[derive(Clone, Copy)]
pub(super) enum Arg<'a> {
    Tensor(&'a dyn Tensor),
    Count(usize),
    Word(u32),
    Real(f32),
    Double(f64),
}

impl Gpu {
    /// The GPU with this ordinal, which `device` is, with the kernels for compute copies of type `T`.
    pub(super) fn new<T: Element>(
        device: &Arc<dyn Device>,
        ordinal: usize,
        source: &str,
        constants: &[String],
    ) -> Result<Self> {
        probe()?;
        let context = CudaContext::new(ordinal).map_err(failed)?;
        let (major, minor) = context.compute_capability().map_err(failed)?;
        let mut flags = vec![format!("--gpu-architecture=sm_{major}{minor}")];
        flags.extend(constants.iter().map(|constant| format!("-D{constant}")));
        if T::DTYPE.size() == 2 {
            flags.push("-DBF16".to_owned());
        }
        let image = compile(source, &flags)?;
        let mut module = std::ptr::null_mut();
        // SAFETY: `cuModuleLoadData` (cuda.h, "Module Management") reads the image, which is whole, and
        // the context is current since it was made.
        check(unsafe { driver::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) })?;
        Ok(Self {
            device: Arc::clone(device),
            context,
            module,
        })
    }

    /// The kernel of this name.
    pub(super) fn kernel(&self, name: &CStr) -> Result<Kernel> {
        let mut function = std::ptr::null_mut();
        // SAFETY: `cuModuleGetFunction` (cuda.h, "Module Management"): the module is loaded.
        check(unsafe {
            driver::cuModuleGetFunction(&raw mut function, self.module, name.as_ptr())
        })?;
        Ok(Kernel(function))
    }

    /// Launches a kernel over `elements` elements.
    pub(super) fn launch(
        &self,
        kernel: Kernel,
        elements: usize,
        args: &[Arg<'_>],
        stream: &Stream,
    ) -> Result<()> {
        let blocks = (elements as u64).div_ceil(THREADS.into()).min(BLOCKS);
        self.launch_blocks(kernel, u32::try_from(blocks).unwrap_or(1), args, stream)
    }

    /// Launches so many blocks of a kernel, none where there is nothing to do.
    pub(super) fn launch_blocks(
        &self,
        Kernel(function): Kernel,
        blocks: u32,
        args: &[Arg<'_>],
        stream: &Stream,
    ) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        let tensors: Vec<_> = args.iter().filter_map(Arg::tensor).collect();
        let values: Vec<_> = args.iter().map(Value::from).collect();
        let mut params: Vec<_> = values.iter().map(Value::as_ptr).collect();
        self.enqueue(&tensors, stream, |raw| {
            // SAFETY: `cuLaunchKernel` (cuda.h, "Execution Control"): the function is of a module that is
            // never unloaded; each argument is of the type of its parameter, as the callers in this
            // module see to, and is read before the call returns; the kernel stays inside the tensors,
            // which `kernel::launch` keeps valid and orders.
            let launched = unsafe {
                driver::cuLaunchKernel(
                    function,
                    blocks,
                    1,
                    1,
                    THREADS,
                    1,
                    1,
                    0,
                    raw,
                    params.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            };
            check(launched)
        })
    }

    /// Runs `enqueue` with the context current and the stream ordered after the last use of the
    /// tensors.
    pub(super) fn enqueue(
        &self,
        tensors: &[&dyn Tensor],
        stream: &Stream,
        enqueue: impl FnOnce(driver::CUstream) -> Result<()>,
    ) -> Result<()> {
        kernel::launch(&*self.device, tensors, stream, || {
            self.context.bind_to_thread().map_err(failed)?;
            enqueue(raw(stream))
        })
    }
}

/// The driver's handle of a stream.
pub(super) fn raw(stream: &Stream) -> driver::CUstream {
    std::ptr::with_exposed_provenance_mut(stream.raw())
}

/// What the driver reads an argument from.
#[derive(Clone, Copy, Debug)]
enum Value {
    Wide(u64),
    Word(u32),
    Real(f32),
    Double(f64),
}

impl Value {
    fn from(arg: &Arg<'_>) -> Self {
        match *arg {
            Arg::Tensor(tensor) => Self::Wide(tensor.operand().addr.value() as u64),
            Arg::Count(count) => Self::Wide(count as u64),
            Arg::Word(word) => Self::Word(word),
            Arg::Real(real) => Self::Real(real),
            Arg::Double(double) => Self::Double(double),
        }
    }

    /// The driver only reads, though it takes a pointer that it might write.
    fn as_ptr(&self) -> *mut c_void {
        let value: *const c_void = match self {
            Self::Wide(value) => std::ptr::from_ref(value).cast(),
            Self::Word(value) => std::ptr::from_ref(value).cast(),
            Self::Real(value) => std::ptr::from_ref(value).cast(),
            Self::Double(value) => std::ptr::from_ref(value).cast(),
        };
        value.cast_mut()
    }
}

impl<'a> Arg<'a> {
    fn tensor(&self) -> Option<&'a dyn Tensor> {
        match *self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }
}

/// Fails where a library is missing: cudarc panics at the first call into one.
fn probe() -> Result<()> {
    // SAFETY: Loading these libraries runs their initialisers, which is what they are for.
    let driver = unsafe { driver::is_culib_present() };
    // SAFETY: As above.
    let cublas = unsafe { cublas::sys::is_culib_present() };
    // SAFETY: As above.
    let nvrtc = unsafe { nvrtc_sys::is_culib_present() };
    missing(driver, cublas, nvrtc)
}

/// What of these is not there, and what to do about it.
fn missing(driver: bool, cublas: bool, nvrtc: bool) -> Result<()> {
    let (toolkit, packages) = ("the CUDA toolkit", "the package nvidia-");
    for (present, library, install) in [
        (driver, "libcuda.so.1", "the NVIDIA driver".to_owned()),
        (
            cublas,
            "libcublas.so.13 or .12",
            format!("{toolkit} or {packages}cublas"),
        ),
        (
            nvrtc,
            "libnvrtc.so.13 or .12",
            format!("{toolkit} or {packages}cuda-nvrtc"),
        ),
    ] {
        if !present {
            let text = format!(
                "arithmetic on the GPU, since {library} cannot be loaded: install {install} and put its \
                 libraries on LD_LIBRARY_PATH, or compute with --arithmetic host"
            );
            return Err(Error::unsupported(Unsupported::Operation(text)));
        }
    }
    Ok(())
}

/// Compiles for one architecture, so that the driver need not understand what the compiler's version
/// writes for all of them.
fn compile(source: &str, flags: &[String]) -> Result<Vec<u8>> {
    let source = CString::new(source).map_err(|error| system(&error))?;
    let program = nvrtc::create_program(&source, Some(c"kernels.cu")).map_err(compiler)?;
    // SAFETY: The program is valid until it is destroyed, below.
    let compiled = unsafe { nvrtc::compile_program(program, flags) };
    let image = match compiled {
        Ok(()) => image(program),
        Err(error) => {
            // SAFETY: As above.
            let log = unsafe { nvrtc::get_program_log(program) }.unwrap_or_default();
            // Characters of C have a sign on some machines only.
            let log: Vec<_> = log.iter().map(|letter| letter.to_ne_bytes()[0]).collect();
            let log = String::from_utf8_lossy(&log).into_owned();
            Err(compiler(error).caused_by(system(&log)))
        }
    };
    // SAFETY: As above; nothing uses it any more.
    unsafe { nvrtc::destroy_program(program) }.map_err(compiler)?;
    image
}

fn image(program: nvrtc_sys::nvrtcProgram) -> Result<Vec<u8>> {
    let mut bytes = 0;
    // SAFETY: `nvrtcGetCUBINSize` (nvrtc.h) writes one number; the program was compiled.
    let sized = unsafe { nvrtc_sys::nvrtcGetCUBINSize(program, &raw mut bytes) };
    sized.result().map_err(compiler)?;
    let mut image = vec![0_u8; bytes];
    // SAFETY: `nvrtcGetCUBIN` (nvrtc.h) writes as many bytes as it said.
    let written = unsafe { nvrtc_sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()) };
    written.result().map_err(compiler)?;
    Ok(image)
}

fn check(status: driver::CUresult) -> Result<()> {
    status.result().map_err(failed)
}

fn failed(error: safe::DriverError) -> Error {
    native("the CUDA driver", error.0 as i64, format!("{:?}", error.0))
}

fn compiler(error: nvrtc::NvrtcError) -> Error {
    native("NVRTC", error.0 as i64, format!("{:?}", error.0))
}

pub(super) fn native(library: &'static str, code: i64, text: String) -> Error {
    Error::new(ErrorKind::Native {
        library,
        code,
        text,
    })
}

fn system(what: &impl ToString) -> Error {
    Error::new(ErrorKind::System(what.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_what_to_install() {
        missing(true, true, true).unwrap();
        for (missing, library, package) in [
            (missing(false, true, true), "libcuda", "driver"),
            (missing(true, false, true), "libcublas", "nvidia-cublas"),
            (missing(true, true, false), "libnvrtc", "nvidia-cuda-nvrtc"),
        ] {
            let error = missing.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
            let text = error.to_string();
            assert!(text.contains(library) && text.contains(package), "{text}");
        }
    }
}
