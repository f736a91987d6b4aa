//! Division of a result by the number of ranks, as a kernel of ours.
//!
//! NCCL has no symmetric all-reduce kernel that averages, and 2.30.3 to 2.31 call one that does not
//! exist. So an average is a sum, then this. The kernels are text that the driver compiles, so that
//! no CUDA compiler is needed.

use std::ffi::{CStr, CString, c_void};
use std::fmt::Write as _;

use collectives_core::addr::Addr;
use collectives_core::dtype::DType;
use collectives_core::error::{Error, Result, Unsupported};

use crate::device::shared::Shared;
use crate::driver::{Context, RawFunction, RawModule, RawStream};

/// The compute capability from which 8-bit floats can be converted.
const F8_COMPUTE: u32 = 89;

const THREADS: u32 = 256;
const MOST_BLOCKS: u64 = 1024;

/// The loaded kernels.
#[derive(Debug)]
pub(crate) struct Kernels(Vec<(DType, RawFunction)>);

/// How one element type is loaded into `%x`, divided by `%y` and stored from `%x`.
struct Body {
    dtype: DType,
    name: &'static CStr,
    divide: &'static str,
}

const WIDE: [Body; 4] = [
    Body {
        dtype: DType::F32,
        name: c"divide_f32",
        divide: "ld.global.f32 %x, [%d]; div.rn.f32 %x, %x, %y; st.global.f32 [%d], %x;",
    },
    Body {
        dtype: DType::F64,
        name: c"divide_f64",
        divide: "ld.global.f64 %xd, [%d]; div.rn.f64 %xd, %xd, %yd; st.global.f64 [%d], %xd;",
    },
    Body {
        dtype: DType::F16,
        name: c"divide_f16",
        divide: "ld.global.b16 %h, [%d]; cvt.f32.f16 %x, %h; div.rn.f32 %x, %x, %y; \
                 cvt.rn.f16.f32 %h, %x; st.global.b16 [%d], %h;",
    },
    Body {
        dtype: DType::Bf16,
        name: c"divide_bf16",
        divide: "ld.global.b16 %h, [%d]; mov.b32 %u, {%zero, %h}; mov.b32 %x, %u; \
                 div.rn.f32 %x, %x, %y; cvt.rn.bf16.f32 %h, %x; st.global.b16 [%d], %h;",
    },
];

const NARROW: [Body; 2] = [
    Body {
        dtype: DType::F8E4M3,
        name: c"divide_f8e4m3",
        divide: "ld.global.u8 %h, [%d]; cvt.rn.f16x2.e4m3x2 %u, %h; mov.b32 {%h, %q}, %u; \
                 cvt.f32.f16 %x, %h; div.rn.f32 %x, %x, %y; \
                 cvt.rn.satfinite.e4m3x2.f32 %h, %z, %x; st.global.u8 [%d], %h;",
    },
    Body {
        dtype: DType::F8E5M2,
        name: c"divide_f8e5m2",
        divide: "ld.global.u8 %h, [%d]; cvt.rn.f16x2.e5m2x2 %u, %h; mov.b32 {%h, %q}, %u; \
                 cvt.f32.f16 %x, %h; div.rn.f32 %x, %x, %y; \
                 cvt.rn.satfinite.e5m2x2.f32 %h, %z, %x; st.global.u8 [%d], %h;",
    },
];

/// The text of a module with these kernels.
fn text(header: &str, bodies: &[Body]) -> String {
    let mut text = format!("{header}\n.address_size 64\n");
    for body in bodies {
        let (name, size) = (body.name.to_string_lossy(), body.dtype.size());
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            ".visible .entry {name}(.param .u64 data, .param .u64 count, .param .f64 by) {{\n\
             .reg .pred %p; .reg .b64 %i, %n, %a, %d, %step; .reg .b32 %t, %b, %c, %g, %u;\n\
             .reg .b16 %h, %q, %zero; .reg .f32 %x, %y, %z; .reg .f64 %xd, %yd;\n\
             ld.param.u64 %a, [data]; cvta.to.global.u64 %a, %a;\n\
             ld.param.u64 %n, [count]; ld.param.f64 %yd, [by]; cvt.rn.f32.f64 %y, %yd;\n\
             mov.b16 %zero, 0; mov.f32 %z, 0f00000000;\n\
             mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %c, %ntid.x; mov.u32 %g, %nctaid.x;\n\
             mul.wide.u32 %i, %b, %c; cvt.u64.u32 %d, %t; add.u64 %i, %i, %d;\n\
             mul.wide.u32 %step, %g, %c;\n\
             LOOP: setp.ge.u64 %p, %i, %n; @%p bra DONE;\n\
             mul.lo.u64 %d, %i, {size}; add.u64 %d, %a, %d;\n\
             {divide}\n\
             add.u64 %i, %i, %step; bra LOOP;\n\
             DONE: ret;\n}}\n",
            divide = body.divide,
        );
    }
    text
}

impl Kernels {
    fn load(context: Context, compute: u32) -> Result<Self> {
        let mut kernels = Self(Vec::new());
        kernels.add(context, ".version 7.0\n.target sm_80", &WIDE)?;
        if compute >= F8_COMPUTE {
            kernels.add(context, ".version 8.1\n.target sm_89", &NARROW)?;
        }
        Ok(kernels)
    }

    fn add(&mut self, context: Context, header: &str, bodies: &[Body]) -> Result<()> {
        let driver = context.driver;
        let text = CString::new(text(header, bodies)).unwrap_or_default();
        let mut module = RawModule::NULL;
        // SAFETY: `cuModuleLoadData` (cuda.h, "Module Management") takes a text that ends with
        // zero. The module is never unloaded.
        unsafe { driver.module_load_data(&raw mut module, text.as_ptr().cast()) }?;
        for body in bodies {
            let mut function = RawFunction::NULL;
            // SAFETY: `cuModuleGetFunction` (same section): the module is loaded.
            unsafe { driver.module_get_function(&raw mut function, module, body.name.as_ptr()) }?;
            self.0.push((body.dtype, function));
        }
        Ok(())
    }
}

/// The kernels of a device, loaded at the first call.
fn kernels(device: &Shared) -> Result<&Kernels> {
    let loaded = device.kernels.get_or_init(|| {
        let _current = device.context.enter_relaxed()?;
        Kernels::load(device.context, device.compute)
    });
    loaded.as_ref().map_err(Error::clone)
}

/// Makes sure that this type can be divided, before anything is enqueued.
pub(crate) fn prepare(device: &Shared, dtype: DType) -> Result<RawFunction> {
    let found = kernels(device)?.0.iter().find(|(known, _)| *known == dtype);
    found.map(|(_, function)| *function).ok_or_else(|| {
        let text = format!("an average of {dtype} needs a GPU of compute capability 8.9");
        Error::unsupported(Unsupported::Operation(text))
    })
}

/// Divides `count` elements at `addr`, in stream order. The context is current.
///
/// # Safety
///
/// The elements are valid for the device until the kernel has run, and nothing unordered with the
/// stream uses them.
pub(crate) unsafe fn divide(
    device: &Shared,
    function: RawFunction,
    addr: Addr,
    count: usize,
    by: usize,
    stream: RawStream,
) -> Result<()> {
    let mut data = addr.value() as u64;
    let mut count = count as u64;
    // Ranks are far fewer than what a double holds exactly.
    let mut by = f64::from(u32::try_from(by).unwrap_or(u32::MAX));
    let blocks = count.div_ceil(u64::from(THREADS)).clamp(1, MOST_BLOCKS);
    let blocks = u32::try_from(blocks).unwrap_or(1);
    let mut params: [*mut c_void; 3] = [
        (&raw mut data).cast(),
        (&raw mut count).cast(),
        (&raw mut by).cast(),
    ];
    // SAFETY: `cuLaunchKernel` (cuda.h, "Execution Control"): the kernel takes these three
    // parameters, which are copied at the call; the elements are valid by the caller.
    unsafe {
        device.driver().launch_kernel(
            function,
            blocks,
            1,
            1,
            THREADS,
            1,
            1,
            0,
            stream,
            params.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_floating_type_has_a_kernel_and_nothing_else() {
        let mut with: Vec<_> = WIDE.iter().chain(&NARROW).map(|body| body.dtype).collect();
        with.sort_unstable();
        let floats: Vec<_> = DType::ALL.into_iter().filter(|d| d.is_float()).collect();
        assert_eq!(with, floats);
        let text = text(".version 7.0", &WIDE);
        assert!(text.contains("mul.lo.u64 %d, %i, 8") && text.contains(".entry divide_bf16("));
    }
}
