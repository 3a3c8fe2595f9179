"""hetcomm as a backend of torch.distributed.

``torch.distributed.init_process_group("hetcomm")`` works once the package is installed: torch calls
:func:`register` when it is imported. Importing this module registers the backend as well.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import warnings
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = [
    "Options", "ProcessGroupHetcomm", "communicator", "device_array", "monitored_barrier", "register"
]

BACKEND = "hetcomm"
# Types of devices whose tensors the backend takes, if torch has them: "privateuseone" is whatever an
# extension has renamed that to, such as "npu".
DEVICES = ("cpu", "cuda", "xpu", "hpu", "mtia", "privateuseone")

_module: Any = None
_failure: Exception | None = None


def _version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _load() -> Any:
    """The extension module for this torch; raises ImportError with what to do without one."""
    global _module
    if _module is None:
        major, minor = _version()
        name = f"hetcomm._torch_{major}_{minor}"
        try:
            _module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ImportError(
                f"this hetcomm was not built for torch {torch.__version__}: install it again "
                "where this torch is installed (pip install --force-reinstall --no-cache-dir)"
            ) from None
        # Callbacks of what is pending can still run; later, Python ends every thread that tries.
        atexit.register(_close_all)
    return _module


def _close_all() -> None:
    _module.close_all("the interpreter ends", _unhandled_exception())


def _unhandled_exception() -> str:
    """What other ranks read that wait for this one, if its script ends by an exception; or ""."""
    kind = getattr(sys, "last_type", None)
    if kind is None or hasattr(sys, "ps1"):  # an interactive session goes on after an exception
        return ""
    lines = str(getattr(sys, "last_value", "")).splitlines() or [""]
    text = f"{kind.__name__}: {lines[0]}" if lines[0] else kind.__name__
    return f"its process ended by an exception ({text[:200]}); read its log"


def _create(options: Any, backend_options: Any = None) -> Any:
    if _failure is not None:
        raise RuntimeError(f"the hetcomm backend cannot be used: {_failure}") from _failure
    module = _load()
    if backend_options is not None and not isinstance(backend_options, module.Options):
        raise TypeError(
            f"pg_options of hetcomm are hetcomm.torch.Options, not {type(backend_options).__name__}"
        )
    try:
        backend = module.create(
            options.store,
            options.group_rank,
            options.group_size,
            options.timeout,
            options.group_id,
            options.global_ranks_in_group,
            backend_options,
            getattr(options, "enable_reconfigure", False),
        )
    except RuntimeError:
        _forget_failed_default_group()
        raise
    _attach_flight_recorder(options, backend)
    return backend


def _attach_flight_recorder(options: Any, backend: Any) -> None:
    """torch 2.14 has a flight recorder for any backend, and attaches it to none. It is attached here
    where it is asked for: it costs more than a small operation. Later versions attach it."""
    if _version() != (2, 14):
        return
    hook = getattr(torch._C._distributed_c10d, "FlightRecorderHook", None)
    size = os.environ.get("TORCH_FR_BUFFER_SIZE", os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE", ""))
    if hook is not None and size.isdigit() and int(size) > 0:
        # It holds the process group until it is removed and gone.
        backend._set_hooks(lambda: hook.attach(options.process_group).remove)


def _forget_failed_default_group() -> None:
    """torch numbers groups, and counts those that failed: without this, the next default group would
    look in the store under another name than that of a process which was started in the meantime.
    """
    if not dist.is_initialized():
        dist.distributed_c10d._world.group_count = 0


def register() -> None:
    """Makes "hetcomm" known to torch.distributed. Any number of times; never raises."""
    global _failure
    try:
        if not dist.is_available() or BACKEND in dist.Backend.backend_list:
            return
        defaults = dict(dist.Backend.default_device_backend_map)
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=list(DEVICES))
        # Who names no backend gets what torch would have taken without this one.
        dist.Backend.default_device_backend_map.clear()
        dist.Backend.default_device_backend_map.update(defaults)
    except Exception as error:  # import torch must go on
        _failure = error
        warnings.warn(f"hetcomm could not be registered with torch.distributed: {error}", stacklevel=2)


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """As torch.distributed.monitored_barrier, which takes no backend but Gloo.

    Rank 0 raises an error that names the first rank, or with ``wait_all_ranks`` all ranks, that did
    not come within ``timeout`` (seconds if it is a number; the group's if there is none). Does nothing
    where this process is no member of the group.
    """
    group = dist.group.WORLD if group is None else group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    backend = group._get_backend(torch.device("cpu"))
    if timeout is None:
        backend.monitored_barrier(wait_all_ranks=wait_all_ranks)
        return
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    backend.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


_communicators: weakref.WeakKeyDictionary[dist.ProcessGroup, Any] = weakref.WeakKeyDictionary()


def communicator(group: dist.ProcessGroup | None = None) -> Any:
    """The :class:`hetcomm.Communicator` under a process group, with the ranks of the group.

    Of a group whose backend for the CPU is hetcomm it is the group's own, and ends with it. Of another
    group it is made from the group's store, which all its ranks do together, once.
    """
    group = dist.group.WORLD if group is None else group
    if group is None or group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this process is no member of the group")
    known = _communicators.get(group)
    if known is None or known.closed:
        known = _communicators[group] = _communicator_of(group)
        _ranks[known] = tuple(dist.get_process_group_ranks(group))
    return known


_ranks: weakref.WeakKeyDictionary[Any, tuple[int, ...]] = weakref.WeakKeyDictionary()


def ranks_of(communicator: Any) -> tuple[int, ...] | None:
    """The ranks in torch's default group of a communicator that :func:`communicator` has given."""
    return _ranks.get(communicator)


def _communicator_of(group: dist.ProcessGroup) -> Any:
    import hetcomm
    from hetcomm import _closing

    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        backend = None
    if hasattr(backend, "_lend_communicator"):
        made: list[Any] = []

        def forget() -> None:
            if made and (own := made[0]()) is not None:
                _closing.closing(own)
                own.close()

        address = backend._lend_communicator(forget)
        lent = hetcomm.Communicator._borrow(address, backend)
        made.append(weakref.ref(lent))
        _contexts[lent] = backend._context()
        return lent
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    # A store may outlive a group, and another group of the same name come: all ranks make as many.
    number = _made[group.group_name] = _made.get(group.group_name, -1) + 1
    store = dist.PrefixStore(
        f"hetcomm/{group.group_name}/{number}", dist.distributed_c10d._get_default_store()
    )

    def get(key: str, seconds: float) -> bytes | None:
        try:
            store.wait([key], timedelta(seconds=max(seconds, 0.001)))
        except (dist.DistStoreError, RuntimeError):
            return None
        return store.get(key)

    try:
        shared = _load().SharedContext()
    except ImportError:  # not built for this torch: tensors on devices are refused
        shared = None
    own = hetcomm.Context(thread=True) if shared is None else (
        hetcomm.Context._borrow(shared.address, shared))
    made = hetcomm.Communicator.from_store(
        own, rank, size, put=store.set, get=get, name=group.group_name
    )
    if shared is not None:
        _contexts[made] = shared
    # Plans that redistribute() keeps would keep it for ever.
    weakref.finalize(group, _close, made).atexit = False
    return made


_made: dict[str, int] = {}

# By communicator: the context in which tensors on devices are named for it.
_contexts: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

def device_array(array: Any, communicator: Any) -> Any:
    """A contiguous array on a device of torch's, for calls of ``communicator``, which
    :func:`communicator` has given, and of its queues and plans.

    It is a tensor, or what another library gives by DLPack or ``__cuda_array_interface__``. On other
    devices than those of CUDA and ROCm torch does not ask that library for its stream: wait for it.
    Operations on it start when the stream that is current for its device has come to this call; use
    the data after their requests have ended. It keeps the array.
    """
    import hetcomm

    context = _contexts.get(communicator)
    if context is None:
        raise ValueError("tensors on devices need a communicator of hetcomm.torch.communicator()")
    tensor = array if isinstance(array, torch.Tensor) else _tensor_of(array)
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise BufferError("the tensor is not contiguous: use contiguous(), resolve_conj(), resolve_neg()")
    if tensor.requires_grad:
        raise BufferError("the tensor requires gradients: use detach()")
    if tensor.numel() == 0:
        return torch.empty(0, dtype=tensor.dtype, device="cpu")  # it has no memory to be named
    named = context.name(tensor)
    type_name = str(tensor.dtype).removeprefix("torch.")
    return hetcomm._core.DeviceArray(named.memory, named.bytes, type_name, named.stream, named)


def _tensor_of(array: Any) -> torch.Tensor:
    """The memory of another library's array. The current stream waits for what makes its contents where
    that library tells torch of its stream, as with CUDA and ROCm."""
    if hasattr(array, "__dlpack__"):
        return torch.from_dlpack(array)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(f"{type(array).__name__} gives no memory: it has neither __dlpack__ nor "
                        "__cuda_array_interface__")
    tensor = torch.as_tensor(array, device="cuda")
    if tensor.numel() > 0 and tensor.data_ptr() != interface["data"][0]:
        raise ValueError("the array lies on another device than the current one: use torch.cuda.device()")
    if interface.get("stream") is not None:
        maker = torch.cuda.ExternalStream(interface["stream"], device=tensor.device)
        torch.cuda.current_stream(tensor.device).wait_stream(maker)
    return tensor


def _close(communicator: Any) -> None:
    try:
        communicator.close()
    except Exception as error:  # nobody is there to hear of it
        warnings.warn(f"a communicator of a group that has gone was not closed: {error}", stacklevel=1)


def __getattr__(name: str) -> Any:
    # Only who uses them needs the module for this torch.
    if name in ("Options", "ProcessGroupHetcomm"):
        return getattr(_load(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register()
