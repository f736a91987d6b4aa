//! Where there is no driver, no GPU or no NCCL, everything says so and nothing panics.

#![forbid(unsafe_code)]

use std::sync::Arc;

use collectives_core::error::ErrorKind;
use collectives_core::in_process::InProcess;
use collectives_nccl::device::CudaDevice;
use collectives_nccl::options::Options;
use collectives_nccl::setup::{Setup, check_platform, library_version};

#[test]
fn a_missing_driver_or_library_is_a_typed_error() {
    let Err(error) = check_platform() else {
        println!("skipped: there are a driver, a GPU and NCCL here");
        return;
    };
    assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
    assert!(!error.poisons());
    if let Err(error) = library_version() {
        assert!(
            error.to_string().contains("COLLECTIVES_NCCL_LIB"),
            "{error}"
        );
    }
}

#[test]
fn a_device_that_does_not_exist_is_an_error() {
    let error = CudaDevice::open(usize::MAX).err();
    let far = CudaDevice::open(4096).err();
    for error in [error, far] {
        let error = error.expect("no machine has so many GPUs");
        assert_eq!(error.operation(), Some("open"));
        assert_eq!(error.backend(), Some("nccl"));
    }
}

#[test]
fn set_up_without_nccl_tells_the_other_ranks() {
    let Ok(device) = CudaDevice::open(0) else {
        println!("skipped: without a device there is nothing to set up");
        return;
    };
    if library_version().is_ok() {
        println!("skipped: NCCL is here");
        return;
    }
    let mut world = InProcess::world(2);
    let (Some(second), Some(first)) = (world.pop(), world.pop()) else {
        return;
    };
    let failed = Setup::new(Arc::new(first), device, Options::default());
    assert!(failed.is_err());
    use collectives_core::bootstrap::Bootstrap;
    assert!(second.failure().is_some());
}
