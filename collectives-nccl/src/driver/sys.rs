//! The driver's types and functions, as `cuda.h` has them.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use collectives_core::error::Result;
use libloading::os::unix::Library;

use super::error::{failed, missing};

/// `CUresult`. Not an enum: a newer driver may return codes that have no name here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Code(pub(crate) c_int);

impl Code {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_READY: Self = Self(600);
    pub(crate) const CAPTURE_UNSUPPORTED: Self = Self(900);
    pub(crate) const CAPTURE_INVALIDATED: Self = Self(901);
    pub(crate) const CAPTURE_UNMATCHED: Self = Self(903);
    pub(crate) const CAPTURE_UNJOINED: Self = Self(904);
    pub(crate) const CAPTURE_ISOLATION: Self = Self(905);
    pub(crate) const CAPTURE_IMPLICIT: Self = Self(906);
    pub(crate) const CAPTURED_EVENT: Self = Self(907);
    pub(crate) const UPDATE_FAILURE: Self = Self(910);
}

macro_rules! handles {
    ($($name:ident)+) => {$(
        /// The driver's handle of this name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(crate) *mut c_void);

        impl $name {
            pub(crate) const NULL: Self = Self(ptr::null_mut());
        }

        // SAFETY: A handle is a value, and the driver may be called from any thread (CUDA
        // programming guide, "Driver API").
        unsafe impl Send for $name {}
        // SAFETY: As for `Send`.
        unsafe impl Sync for $name {}
    )+};
}

handles! { RawContext RawStream RawEvent RawGraph RawNode RawExecutable RawModule RawFunction RawUserObject }

/// `CUdevice`.
pub(crate) type RawDevice = c_int;
/// `CUdeviceptr`.
pub(crate) type DevicePointer = u64;
/// `CUmemGenericAllocationHandle`.
pub(crate) type Physical = u64;

/// `CUstreamCaptureStatus`.
pub(crate) const CAPTURE_NONE: c_int = 0;
pub(crate) const CAPTURE_ACTIVE: c_int = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
pub(crate) const MODE_THREAD_LOCAL: c_int = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) const MODE_RELAXED: c_int = 2;
/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`.
pub(crate) const EVENT_EXTERNAL: c_uint = 1;
/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`.
pub(crate) const USER_OBJECT_NO_SYNC: c_uint = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
pub(crate) const USER_OBJECT_MOVE: c_uint = 1;
/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
pub(crate) const DEPENDENCIES_SET: c_uint = 1;
/// `CU_GRAPH_NODE_TYPE_KERNEL`.
pub(crate) const NODE_KERNEL: c_int = 0;

/// `CUdevice_attribute` values used here.
pub(crate) mod attribute {
    use std::ffi::c_int;

    pub(crate) const COMPUTE_MAJOR: c_int = 75;
    pub(crate) const COMPUTE_MINOR: c_int = 76;
    pub(crate) const VMM: c_int = 102;
    pub(crate) const RDMA_WITH_VMM: c_int = 110;
    pub(crate) const FABRIC: c_int = 128;
}

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Location {
    /// `CU_MEM_LOCATION_TYPE_DEVICE` is 1.
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocationProp {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED` is 1.
    pub(crate) kind: c_int,
    /// A bit set of the handle types below.
    pub(crate) handle_types: c_int,
    pub(crate) location: Location,
    pub(crate) win32: *mut c_void,
    pub(crate) compression: u8,
    pub(crate) rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const HANDLE_POSIX_FD: c_int = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`.
pub(crate) const HANDLE_FABRIC: c_int = 8;
/// `CU_MEM_ALLOC_GRANULARITY_RECOMMENDED`.
pub(crate) const GRANULARITY_RECOMMENDED: c_int = 1;

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Access {
    pub(crate) location: Location,
    /// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE` is 3.
    pub(crate) flags: c_int,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct KernelNode {
    pub(crate) function: RawFunction,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    pub(crate) kernel: RawFunction,
    context: RawContext,
}

impl KernelNode {
    pub(crate) const EMPTY: Self = Self {
        function: RawFunction::NULL,
        grid: [0; 3],
        block: [0; 3],
        shared_bytes: 0,
        params: ptr::null_mut(),
        extra: ptr::null_mut(),
        kernel: RawFunction::NULL,
        context: RawContext::NULL,
    };
}

/// `CUgraphExecUpdateResultInfo`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct UpdateInfo {
    pub(crate) result: c_int,
    pub(crate) node: RawNode,
    pub(crate) from: RawNode,
}

const _: () = assert!(
    size_of::<AllocationProp>() == 32
        && size_of::<Access>() == 12
        && size_of::<KernelNode>() == 72
        && size_of::<UpdateInfo>() == 24
);

/// The destructor of a user object.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

macro_rules! functions {
    ($($field:ident = $name:literal ($($arg:ident: $ty:ty),*);)+) => {
        /// Every function used; `None` where the driver lacks it.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Functions {
            $($field: Option<unsafe extern "C" fn($($ty),*) -> Code>,)+
        }

        impl Functions {
            pub(crate) fn load(library: &Library) -> Self {
                Self { $($field: find(library, $name),)+ }
            }
        }

        #[expect(clippy::too_many_arguments, reason = "a launch has eleven")]
        impl super::load::Driver {
            /// Whether codes have texts.
            pub(super) fn has_error_strings(&self) -> bool {
                self.functions.get_error_string.is_some()
            }

            $(
            /// Calls the driver's function of this name and returns its code.
            ///
            /// # Safety
            ///
            /// As `cuda.h` demands of its caller.
            #[inline(always)]
            pub(crate) unsafe fn $field(&self, $($arg: $ty),*) -> Result<()> {
                match self.functions.$field {
                    // SAFETY: By the caller.
                    Some(function) => match unsafe { function($($arg),*) } {
                        Code::SUCCESS => Ok(()),
                        code => Err(failed($name, code)),
                    },
                    None => Err(missing($name)),
                }
            }
            )+
        }
    };
}

fn find<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: `F` is the type of the function of this name, version suffix included, in cuda.h.
    unsafe { library.get::<F>(name.as_bytes()) }
        .ok()
        .map(|symbol| *symbol)
}

functions! {
    // What calls enqueue with lies together, on two cache lines.
    context_get_current = "cuCtxGetCurrent" (context: *mut RawContext);
    stream_is_capturing = "cuStreamIsCapturing" (stream: RawStream, status: *mut c_int);
    copy_device_to_device = "cuMemcpyDtoDAsync_v2" (dst: DevicePointer, src: DevicePointer, bytes: usize, stream: RawStream);
    event_record = "cuEventRecord" (event: RawEvent, stream: RawStream);
    stream_wait_event = "cuStreamWaitEvent" (stream: RawStream, event: RawEvent, flags: c_uint);
    graph_launch = "cuGraphLaunch" (executable: RawExecutable, stream: RawStream);
    launch_kernel = "cuLaunchKernel" (function: RawFunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: RawStream, params: *mut *mut c_void, extra: *mut *mut c_void);
    // The rest.
    init = "cuInit" (flags: c_uint);
    device_get = "cuDeviceGet" (device: *mut RawDevice, ordinal: c_int);
    device_get_count = "cuDeviceGetCount" (count: *mut c_int);
    device_get_attribute = "cuDeviceGetAttribute" (value: *mut c_int, attribute: c_int, device: RawDevice);
    device_get_uuid = "cuDeviceGetUuid" (uuid: *mut [u8; 16], device: RawDevice);
    primary_context_retain = "cuDevicePrimaryCtxRetain" (context: *mut RawContext, device: RawDevice);
    context_push = "cuCtxPushCurrent_v2" (context: RawContext);
    context_pop = "cuCtxPopCurrent_v2" (context: *mut RawContext);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" (mode: *mut c_int);
    stream_create = "cuStreamCreate" (stream: *mut RawStream, flags: c_uint);
    stream_destroy = "cuStreamDestroy_v2" (stream: RawStream);
    stream_get_id = "cuStreamGetId" (stream: RawStream, id: *mut u64);
    stream_get_context = "cuStreamGetCtx" (stream: RawStream, context: *mut RawContext);
    stream_query = "cuStreamQuery" (stream: RawStream);
    stream_synchronize = "cuStreamSynchronize" (stream: RawStream);
    stream_begin_capture = "cuStreamBeginCapture_v2" (stream: RawStream, mode: c_int);
    stream_end_capture = "cuStreamEndCapture" (stream: RawStream, graph: *mut RawGraph);
    stream_get_capture_info = "cuStreamGetCaptureInfo_v2" (stream: RawStream, status: *mut c_int, id: *mut u64, graph: *mut RawGraph, dependencies: *mut *const RawNode, count: *mut usize);
    stream_update_dependencies = "cuStreamUpdateCaptureDependencies" (stream: RawStream, dependencies: *mut RawNode, count: usize, flags: c_uint);
    event_create = "cuEventCreate" (event: *mut RawEvent, flags: c_uint);
    event_destroy = "cuEventDestroy_v2" (event: RawEvent);
    event_record_with_flags = "cuEventRecordWithFlags" (event: RawEvent, stream: RawStream, flags: c_uint);
    event_query = "cuEventQuery" (event: RawEvent);
    event_synchronize = "cuEventSynchronize" (event: RawEvent);
    mem_alloc = "cuMemAlloc_v2" (pointer: *mut DevicePointer, bytes: usize);
    mem_free = "cuMemFree_v2" (pointer: DevicePointer);
    mem_get_info = "cuMemGetInfo_v2" (free: *mut usize, total: *mut usize);
    copy_host_to_device = "cuMemcpyHtoDAsync_v2" (dst: DevicePointer, src: *const c_void, bytes: usize, stream: RawStream);
    copy_device_to_host = "cuMemcpyDtoHAsync_v2" (dst: *mut c_void, src: DevicePointer, bytes: usize, stream: RawStream);
    mem_create = "cuMemCreate" (handle: *mut Physical, bytes: usize, prop: *const AllocationProp, flags: u64);
    mem_release = "cuMemRelease" (handle: Physical);
    mem_address_reserve = "cuMemAddressReserve" (pointer: *mut DevicePointer, bytes: usize, alignment: usize, hint: DevicePointer, flags: u64);
    mem_address_free = "cuMemAddressFree" (pointer: DevicePointer, bytes: usize);
    mem_map = "cuMemMap" (pointer: DevicePointer, bytes: usize, offset: usize, handle: Physical, flags: u64);
    mem_unmap = "cuMemUnmap" (pointer: DevicePointer, bytes: usize);
    mem_set_access = "cuMemSetAccess" (pointer: DevicePointer, bytes: usize, access: *const Access, count: usize);
    mem_get_granularity = "cuMemGetAllocationGranularity" (granularity: *mut usize, prop: *const AllocationProp, option: c_int);
    mem_retain_handle = "cuMemRetainAllocationHandle" (handle: *mut Physical, address: *mut c_void);
    user_object_create = "cuUserObjectCreate" (object: *mut RawUserObject, pointer: *mut c_void, destroy: HostFunction, count: c_uint, flags: c_uint);
    user_object_release = "cuUserObjectRelease" (object: RawUserObject, count: c_uint);
    graph_retain_user_object = "cuGraphRetainUserObject" (graph: RawGraph, object: RawUserObject, count: c_uint, flags: c_uint);
    graph_clone = "cuGraphClone" (clone: *mut RawGraph, graph: RawGraph);
    graph_add_child = "cuGraphAddChildGraphNode" (node: *mut RawNode, graph: RawGraph, after: *const RawNode, count: usize, child: RawGraph);
    graph_destroy = "cuGraphDestroy" (graph: RawGraph);
    graph_get_nodes = "cuGraphGetNodes" (graph: RawGraph, nodes: *mut RawNode, count: *mut usize);
    graph_node_get_type = "cuGraphNodeGetType" (node: RawNode, kind: *mut c_int);
    graph_kernel_node_get_params = "cuGraphKernelNodeGetParams_v2" (node: RawNode, params: *mut KernelNode);
    graph_instantiate = "cuGraphInstantiateWithFlags" (executable: *mut RawExecutable, graph: RawGraph, flags: u64);
    graph_exec_update = "cuGraphExecUpdate_v2" (executable: RawExecutable, graph: RawGraph, info: *mut UpdateInfo);
    graph_exec_destroy = "cuGraphExecDestroy" (executable: RawExecutable);
    func_get_name = "cuFuncGetName" (name: *mut *const c_char, function: RawFunction);
    kernel_get_name = "cuKernelGetName" (name: *mut *const c_char, kernel: RawFunction);
    module_load_data = "cuModuleLoadData" (module: *mut RawModule, image: *const c_void);
    module_get_function = "cuModuleGetFunction" (function: *mut RawFunction, module: RawModule, name: *const c_char);
    get_error_string = "cuGetErrorString" (code: Code, text: *mut *const c_char);
}
