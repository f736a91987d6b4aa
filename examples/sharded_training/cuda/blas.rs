//! Matrix products by cuBLAS: elements of a compute copy, sums in `f32`.

use std::ffi::{c_int, c_void};

use collectives_core::buffer::Buffer;
use collectives_core::dtype::{DType, Element};
use collectives_core::error::{Misuse, Result};
use collectives_core::stream::Stream;
use collectives_core::tensor::Tensor;
use cudarc::cublas::sys::{self, cublasOperation_t as Side};

use super::gpu::{Gpu, native, raw};

/// What NVIDIA recommends for Hopper (cuBLAS, "cublasSetWorkspace").
const WORKSPACE_BYTES: usize = 32 << 20;

/// A handle for products on one stream, with scratch of its own, so that products may be captured and
/// equal ones have equal bits.
#[derive(Debug)]
pub(super) struct Blas {
    handle: sys::cublasHandle_t,
    workspace: Buffer<u8>,
}

/// A matrix, row by row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix<'a, T: Element> {
    elements: &'a Buffer<T>,
    rows: usize,
    columns: usize,
    transposed: bool,
}

impl<'a, T: Element> Matrix<'a, T> {
    pub(super) fn new(elements: &'a Buffer<T>, rows: usize, columns: usize) -> Self {
        Self {
            elements,
            rows,
            columns,
            transposed: false,
        }
    }

    pub(super) fn transposed(self) -> Self {
        Self {
            transposed: !self.transposed,
            ..self
        }
    }

    /// Rows and columns as they are multiplied.
    fn shape(self) -> (usize, usize) {
        match self.transposed {
            true => (self.columns, self.rows),
            false => (self.rows, self.columns),
        }
    }

    fn side(self) -> Side {
        match self.transposed {
            true => Side::CUBLAS_OP_T,
            false => Side::CUBLAS_OP_N,
        }
    }

    fn address(self) -> *mut c_void {
        self.elements.operand().addr.as_ptr()
    }
}

impl Blas {
    /// A handle for products on this stream.
    pub(super) fn new(gpu: &Gpu, stream: &Stream) -> Result<Self> {
        let workspace = Buffer::zeroed(&gpu.device, WORKSPACE_BYTES, stream)?;
        let mut handle = std::ptr::null_mut();
        gpu.enqueue(&[&workspace], stream, |_| {
            // SAFETY: `cublasCreate` (cuBLAS, "Helper Functions") writes one handle, of the current
            // context.
            check(unsafe { sys::cublasCreate_v2(&raw mut handle) })
        })?;
        let blas = Self { handle, workspace };
        // SAFETY: `cublasSetStream` (same section): both handles are valid. It forgets the workspace, so
        // it comes first.
        check(unsafe { sys::cublasSetStream_v2(handle, raw(stream).cast()) })?;
        let scratch = blas.workspace.operand();
        // SAFETY: `cublasSetWorkspace` (same section): the memory is valid as long as products that use
        // it, each of which names it.
        check(unsafe { sys::cublasSetWorkspace_v2(handle, scratch.addr.as_ptr(), scratch.bytes) })?;
        Ok(blas)
    }

    /// `product = left * right`, on the stream of this handle.
    pub(super) fn multiply<T: Element>(
        &self,
        gpu: &Gpu,
        left: Matrix<'_, T>,
        right: Matrix<'_, T>,
        product: &Buffer<f32>,
        stream: &Stream,
    ) -> Result<()> {
        let ((rows, inner), (also_inner, columns)) = (left.shape(), right.shape());
        if inner != also_inner || rows * columns > product.len() {
            return Err(Misuse::Other("the matrices do not fit".to_owned()).into());
        }
        let dtype = match T::DTYPE {
            DType::Bf16 => sys::cudaDataType::CUDA_R_16BF,
            _ => sys::cudaDataType::CUDA_R_32F,
        };
        let (rows, columns, inner) = (int(rows)?, int(columns)?, int(inner)?);
        let (left_stride, right_stride) = (int(left.columns)?, int(right.columns)?);
        let (one, zero) = (1.0_f32, 0.0_f32);
        let to = product.operand().addr.as_ptr::<c_void>();
        let tensors: [&dyn Tensor; 4] = [left.elements, right.elements, product, &self.workspace];
        gpu.enqueue(&tensors, stream, |_| {
            // Columns are what cuBLAS calls rows, so the sides change places.
            // SAFETY: `cublasGemmEx` (cuBLAS, "BLAS-like Extension"): shapes and types are those of the
            // tensors, which `kernel::launch` keeps valid and orders; factors are read before the call
            // returns.
            let multiplied = unsafe {
                sys::cublasGemmEx(
                    self.handle,
                    right.side(),
                    left.side(),
                    columns,
                    rows,
                    inner,
                    std::ptr::from_ref(&one).cast(),
                    right.address(),
                    dtype,
                    right_stride,
                    left.address(),
                    dtype,
                    left_stride,
                    std::ptr::from_ref(&zero).cast(),
                    to,
                    sys::cudaDataType::CUDA_R_32F,
                    columns,
                    sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                    sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
                )
            };
            check(multiplied)
        })
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: `cublasDestroy` (cuBLAS, "Helper Functions"): ours, and destroyed once.
        let destroyed = unsafe { sys::cublasDestroy_v2(self.handle) };
        if let Err(error) = check(destroyed) {
            eprintln!("a handle of cuBLAS could not be destroyed: {error}");
        }
    }
}

fn check(status: sys::cublasStatus_t) -> Result<()> {
    match status {
        sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(native("cuBLAS", status as i64, format!("{status:?}"))),
    }
}

fn int(number: usize) -> Result<c_int> {
    let too_large = |_| Misuse::Other(format!("{number} is too large for a matrix")).into();
    c_int::try_from(number).map_err(too_large)
}
