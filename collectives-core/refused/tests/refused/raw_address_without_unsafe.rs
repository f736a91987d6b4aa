//! An address that nothing counts needs a promise.

use collectives_core::tensor::RawTensor;

fn wraps(pointer: *mut f32) -> RawTensor {
    RawTensor::from_ptr(pointer, 4)
}

fn main() {}
