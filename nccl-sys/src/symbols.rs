//! The functions of the library, each optional.

#![expect(
    clippy::too_many_arguments,
    reason = "the library's functions have up to eight"
)]

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::os::unix::Library;

use crate::config::{CollConfig, Config};
use crate::error::Error;
use crate::types::{Code, Comm, DataType, RedOp, ScalarResidence, Stream, Team, UniqueId, Window};
use crate::version::Version;

/// The loaded library.
#[derive(Debug)]
pub struct Nccl {
    symbols: Symbols,
    version: Version,
    name: String,
}

impl Nccl {
    pub(crate) fn new(symbols: Symbols, version: Version, name: String) -> Self {
        Self {
            symbols,
            version,
            name,
        }
    }

    /// The library's version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Where it was found.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The functions it has.
    #[must_use]
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    fn missing(&self, name: &'static str) -> Error {
        Error::MissingSymbol {
            name,
            version: self.version,
        }
    }

    #[inline]
    fn check(&self, name: &'static str, code: Code) -> Result<(), Error> {
        match code {
            Code::SUCCESS => Ok(()),
            code => Err(self.failed(name, code)),
        }
    }

    /// The error of a call that returned `code`.
    #[cold]
    #[must_use]
    pub fn failed(&self, name: &'static str, code: Code) -> Error {
        let text = |pointer: *const c_char| {
            // SAFETY: `ncclGetErrorString` and `ncclGetLastError` (nccl.h) return null or a string
            // in the library's static storage, which is never freed.
            let text = (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) });
            text.map(|text| text.to_string_lossy().trim().to_owned())
                .filter(|text| !text.is_empty())
        };
        let meaning = self.symbols.get_error_string.and_then(|get| {
            // SAFETY: It takes any code.
            text(unsafe { get(code) })
        });
        let last = self.symbols.get_last_error.and_then(|get| {
            // SAFETY: It takes a null communicator, and means the last error of the process.
            text(unsafe { get(Comm::NULL) })
        });
        let mut words: Vec<_> = [meaning, last].into_iter().flatten().collect();
        if words.is_empty() {
            words.push(code.name().unwrap_or("an unknown code").to_owned());
        }
        Error::Failed {
            name,
            code,
            text: words.join("; "),
        }
    }
}

/// One function: its field, its optional pointer, its checked call.
macro_rules! symbols {
    (
        checked { $($(#[$doc:meta])* $field:ident = $name:literal, $since:literal, ($($arg:ident: $ty:ty),*);)+ }
        plain { $($(#[$pdoc:meta])* $pfield:ident = $pname:literal, $psince:literal, ($($parg:ident: $pty:ty),*) -> $pret:ty;)+ }
    ) => {
        /// Every function this crate knows; `None` where the library lacks it.
        #[derive(Clone, Copy, Debug, Default)]
        #[non_exhaustive]
        pub struct Symbols {
            $($(#[$doc])* pub $field: Option<unsafe extern "C" fn($($ty),*) -> Code>,)+
            $($(#[$pdoc])* pub $pfield: Option<unsafe extern "C" fn($($pty),*) -> $pret>,)+
        }

        impl Symbols {
            /// Each function with the code of the version that first has it.
            pub const TABLE: &[(&str, u32)] = &[$(($name, $since),)+ $(($pname, $psince),)+];

            pub(crate) fn load(library: &Library) -> Self {
                Self {
                    $($field: find(library, $name),)+
                    $($pfield: find(library, $pname),)+
                }
            }
        }

        /// One call each; see `nccl.h` for what it does.
        ///
        /// # Errors
        ///
        /// [`Error::MissingSymbol`], and [`Error::Failed`] for every code but success.
        ///
        /// # Safety
        ///
        /// Handles and pointers must be valid as `nccl.h` demands, handles must come from this
        /// library, and only `comm_abort` may be called while another thread uses a communicator.
        #[expect(
            clippy::missing_errors_doc,
            clippy::missing_safety_doc,
            reason = "said once, above"
        )]
        impl Nccl {
            $($(#[$doc])*
            #[inline]
            pub unsafe fn $field(&self, $($arg: $ty),*) -> Result<(), Error> {
                let Some(function) = self.symbols.$field else {
                    return Err(self.missing($name));
                };
                // SAFETY: By the caller.
                self.check($name, unsafe { function($($arg),*) })
            })+
            $($(#[$pdoc])*
            #[inline]
            pub unsafe fn $pfield(&self, $($parg: $pty),*) -> Result<$pret, Error> {
                let function = self.symbols.$pfield.ok_or_else(|| self.missing($pname))?;
                // SAFETY: By the caller.
                Ok(unsafe { function($($parg),*) })
            })+
        }
    };
}

/// A function of the library.
fn find<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: `F` is the type of this function in nccl.h, which is the same in all versions from
    // 2.27 to 2.32; see the table.
    unsafe { library.get::<F>(name.as_bytes()) }
        .ok()
        .map(|symbol| *symbol)
}

symbols! {
    checked {
        /// `ncclGetVersion`
        get_version = "ncclGetVersion", 20_304, (version: *mut c_int);
        /// `ncclGetUniqueId`
        get_unique_id = "ncclGetUniqueId", 20_304, (id: *mut UniqueId);
        /// `ncclCommInitRankConfig`
        comm_init_rank_config = "ncclCommInitRankConfig", 21_400,
            (comm: *mut Comm, ranks: c_int, id: UniqueId, rank: c_int, config: *mut Config);
        /// `ncclCommFinalize`
        comm_finalize = "ncclCommFinalize", 21_400, (comm: Comm);
        /// `ncclCommDestroy`
        comm_destroy = "ncclCommDestroy", 20_304, (comm: Comm);
        /// `ncclCommAbort`
        comm_abort = "ncclCommAbort", 20_400, (comm: Comm);
        /// `ncclCommRevoke`
        comm_revoke = "ncclCommRevoke", 22_807, (comm: Comm, flags: c_int);
        /// `ncclCommGetAsyncError`
        comm_get_async_error = "ncclCommGetAsyncError", 20_400, (comm: Comm, code: *mut Code);
        /// `ncclCommSplit`
        comm_split = "ncclCommSplit", 21_801,
            (comm: Comm, color: c_int, key: c_int, child: *mut Comm, config: *mut Config);
        /// `ncclCommShrink`
        comm_shrink = "ncclCommShrink", 22_700,
            (comm: Comm, exclude: *mut c_int, count: c_int, child: *mut Comm, config: *mut Config, flags: c_int);
        /// `ncclCommCount`
        comm_count = "ncclCommCount", 20_304, (comm: Comm, count: *mut c_int);
        /// `ncclCommCuDevice`
        comm_cu_device = "ncclCommCuDevice", 20_304, (comm: Comm, device: *mut c_int);
        /// `ncclCommUserRank`
        comm_user_rank = "ncclCommUserRank", 20_304, (comm: Comm, rank: *mut c_int);
        /// `ncclMemAlloc`
        mem_alloc = "ncclMemAlloc", 21_900, (pointer: *mut *mut c_void, bytes: usize);
        /// `ncclMemFree`
        mem_free = "ncclMemFree", 21_900, (pointer: *mut c_void);
        /// `ncclCommRegister`
        comm_register = "ncclCommRegister", 21_900,
            (comm: Comm, buffer: *mut c_void, bytes: usize, handle: *mut *mut c_void);
        /// `ncclCommDeregister`
        comm_deregister = "ncclCommDeregister", 21_900, (comm: Comm, handle: *mut c_void);
        /// `ncclCommWindowRegister`
        comm_window_register = "ncclCommWindowRegister", 22_700,
            (comm: Comm, buffer: *mut c_void, bytes: usize, window: *mut Window, flags: c_int);
        /// `ncclCommWindowDeregister`
        comm_window_deregister = "ncclCommWindowDeregister", 22_700, (comm: Comm, window: Window);
        /// `ncclWinGetUserPtr`
        win_get_user_ptr = "ncclWinGetUserPtr", 22_902,
            (comm: Comm, window: Window, pointer: *mut *mut c_void);
        /// `ncclGetLsaDevicePointer`
        get_lsa_device_pointer = "ncclGetLsaDevicePointer", 22_902,
            (window: Window, offset: usize, lsa_rank: c_int, pointer: *mut *mut c_void);
        /// `ncclGetPeerDevicePointer`
        get_peer_device_pointer = "ncclGetPeerDevicePointer", 22_902,
            (window: Window, offset: usize, peer: c_int, pointer: *mut *mut c_void);
        /// `ncclGetLsaMultimemDevicePointer`; sets multicast up, so not for shared GPU servers.
        get_lsa_multimem_device_pointer = "ncclGetLsaMultimemDevicePointer", 22_902,
            (window: Window, offset: usize, pointer: *mut *mut c_void);
        /// `ncclRedOpCreatePreMulSum`
        red_op_create_pre_mul_sum = "ncclRedOpCreatePreMulSum", 21_100,
            (op: *mut RedOp, scalar: *mut c_void, dtype: DataType, residence: ScalarResidence, comm: Comm);
        /// `ncclRedOpDestroy`
        red_op_destroy = "ncclRedOpDestroy", 21_100, (op: RedOp, comm: Comm);
        /// `ncclGroupStart`
        group_start = "ncclGroupStart", 20_304, ();
        /// `ncclGroupEnd`
        group_end = "ncclGroupEnd", 20_304, ();
        /// `ncclAllReduce`
        all_reduce = "ncclAllReduce", 20_304,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, op: RedOp, comm: Comm, stream: Stream);
        /// `ncclReduce`
        reduce = "ncclReduce", 20_304,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, op: RedOp, root: c_int, comm: Comm, stream: Stream);
        /// `ncclBroadcast`
        broadcast = "ncclBroadcast", 20_304,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, root: c_int, comm: Comm, stream: Stream);
        /// `ncclAllGather`
        all_gather = "ncclAllGather", 20_304,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, comm: Comm, stream: Stream);
        /// `ncclReduceScatter`
        reduce_scatter = "ncclReduceScatter", 20_304,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, op: RedOp, comm: Comm, stream: Stream);
        /// `ncclAlltoAll`
        all_to_all = "ncclAlltoAll", 22_803,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, comm: Comm, stream: Stream);
        /// `ncclGather`
        gather = "ncclGather", 22_803,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, root: c_int, comm: Comm, stream: Stream);
        /// `ncclScatter`
        scatter = "ncclScatter", 22_803,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, root: c_int, comm: Comm, stream: Stream);
        /// `ncclSend`
        send = "ncclSend", 20_700,
            (send: *const c_void, count: usize, dtype: DataType, peer: c_int, comm: Comm, stream: Stream);
        /// `ncclRecv`
        recv = "ncclRecv", 20_700,
            (recv: *mut c_void, count: usize, dtype: DataType, peer: c_int, comm: Comm, stream: Stream);
        /// `ncclAllReduceConfig`
        all_reduce_config = "ncclAllReduceConfig", 23_102,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, op: RedOp, comm: Comm, stream: Stream, config: *const CollConfig);
        /// `ncclReduceConfig`
        reduce_config = "ncclReduceConfig", 23_102,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, op: RedOp, root: c_int, comm: Comm, stream: Stream, config: *const CollConfig);
        /// `ncclBroadcastConfig`
        broadcast_config = "ncclBroadcastConfig", 23_102,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, root: c_int, comm: Comm, stream: Stream, config: *const CollConfig);
        /// `ncclAllGatherConfig`
        all_gather_config = "ncclAllGatherConfig", 23_102,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, comm: Comm, stream: Stream, config: *const CollConfig);
        /// `ncclReduceScatterConfig`
        reduce_scatter_config = "ncclReduceScatterConfig", 23_102,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, op: RedOp, comm: Comm, stream: Stream, config: *const CollConfig);
        /// `ncclAlltoAllConfig`
        all_to_all_config = "ncclAlltoAllConfig", 23_102,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, comm: Comm, stream: Stream, config: *const CollConfig);
        /// `ncclGatherConfig`
        gather_config = "ncclGatherConfig", 23_102,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, root: c_int, comm: Comm, stream: Stream, config: *const CollConfig);
        /// `ncclScatterConfig`
        scatter_config = "ncclScatterConfig", 23_102,
            (send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, root: c_int, comm: Comm, stream: Stream, config: *const CollConfig);
    }
    plain {
        /// `ncclGetErrorString`
        get_error_string = "ncclGetErrorString", 20_304, (code: Code) -> *const c_char;
        /// `ncclGetLastError`
        get_last_error = "ncclGetLastError", 21_300, (comm: Comm) -> *const c_char;
        /// `ncclTeamWorld`
        team_world = "ncclTeamWorld", 22_803, (comm: Comm) -> Team;
        /// `ncclTeamLsa`
        team_lsa = "ncclTeamLsa", 22_803, (comm: Comm) -> Team;
        /// `ncclTeamRankToLsa`
        team_rank_to_lsa = "ncclTeamRankToLsa", 22_803, (comm: Comm, team: Team, rank: c_int) -> c_int;
        /// `ncclTeamRankToWorld`
        team_rank_to_world = "ncclTeamRankToWorld", 22_803, (comm: Comm, team: Team, rank: c_int) -> c_int;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_symbol_is_an_error_that_names_it_and_the_version() {
        let nccl = Nccl::new(Symbols::default(), Version::new(2, 19, 3), String::new());
        // SAFETY: There is no function to be called.
        let error = unsafe { nccl.group_start() }.unwrap_err();
        assert_eq!(error.to_string(), "NCCL 2.19.3 has no ncclGroupStart");
    }

    #[test]
    fn an_unknown_code_stays_a_value() {
        let nccl = Nccl::new(Symbols::default(), Version::new(2, 40, 0), String::new());
        let error = nccl.failed("ncclFoo", Code(4711));
        assert_eq!(error.to_string(), "ncclFoo returned 4711: an unknown code");
    }
}
