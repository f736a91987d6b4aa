//! Which kernels NCCL really uses, read from captured graphs.

use collectives_core::collective::Collective;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::submission::Submission;

use crate::communicator::NcclCommunicator;
use crate::device::{capture, end_capture, kernel_names};

impl NcclCommunicator {
    /// The names of the kernels of each operation, in the order of the operations.
    ///
    /// Each operation is captured on a stream of its own and never runs. Symmetric kernels are
    /// named `ncclSymkDevKernel_…`, ordinary ones `ncclDevKernel_…`. All ranks make the call alike.
    ///
    /// # Errors
    ///
    /// As [`Communicator::enqueue`], and when the driver does not tell names (CUDA 12.3 does).
    ///
    /// # Safety
    ///
    /// As [`Communicator::enqueue`], although nothing runs: NCCL looks the operands up.
    pub unsafe fn verify_paths(&mut self, calls: &[Collective<'_>]) -> Result<Vec<Vec<String>>> {
        let device = std::sync::Arc::clone(self.cuda_device());
        let stream = device.create_stream()?;
        let mut names = Vec::with_capacity(calls.len());
        for call in calls {
            capture(&device, &stream)?;
            let submission = Submission::checked(self, std::slice::from_ref(call), &stream);
            let enqueued = submission.and_then(|submission| {
                // SAFETY: By the caller; the stream is new, nobody else uses it, and the call was checked.
                unsafe { self.enqueue(&submission) }
            });
            let graph = end_capture(&device, &stream);
            enqueued?;
            names.push(kernel_names(&graph?)?);
        }
        Ok(names)
    }
}
