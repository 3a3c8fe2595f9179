"""Makes hetcomm a backend of torch.distributed.

``torch.distributed.init_process_group("hetcomm")`` works once the package is installed, since
PyTorch calls :func:`register` when it is imported. Importing this module registers the backend as
well.
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
    "Options", "ProcessGroupHetcomm", "communicator", "device_array", "device_index", "monitored_barrier",
    "register",
]

BACKEND = "hetcomm"
# Types of devices whose tensors the backend supports, if PyTorch has them. An extension can rename
# "privateuseone", for example to "npu".
DEVICES = ("cpu", "cuda", "xpu", "hpu", "mtia", "privateuseone")

_module: Any = None
_failure: Exception | None = None


def _version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _load() -> Any:
    """Returns the extension module for this PyTorch version. If there is none, raises ImportError
    with instructions."""
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
        # When functions registered with atexit run, callbacks of pending operations can still run,
        # too. Later, Python terminates every thread that tries to run one.
        atexit.register(_close_all)
    return _module


def _close_all() -> None:
    _module.close_all("the interpreter ends", _unhandled_exception())


def _unhandled_exception() -> str:
    """Returns the text to report to ranks that wait for this one if an exception ends its script,
    or "" if none does."""
    kind = getattr(sys, "last_type", None)
    if kind is None or hasattr(sys, "ps1"):  # an interactive session continues after an exception
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
    """Attaches PyTorch 2.14's flight recorder if the user has enabled it. It is not attached by
    default, because recording costs more than a small operation. PyTorch 2.14 has this recorder for
    any backend, but does not attach it. Later versions attach it themselves."""
    if _version() != (2, 14):
        return
    hook = getattr(torch._C._distributed_c10d, "FlightRecorderHook", None)
    size = os.environ.get("TORCH_FR_BUFFER_SIZE", os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE", ""))
    if hook is not None and size.isdigit() and int(size) > 0:
        # The hook keeps the process group alive until it is removed and released.
        backend._set_hooks(lambda: hook.attach(options.process_group).remove)


def _forget_failed_default_group() -> None:
    """If there is no default group, resets PyTorch's count of groups, which also includes groups
    that failed. Otherwise the next default group would use another name in the store than in a
    process that was started after the failure."""
    if not dist.is_initialized():
        dist.distributed_c10d._world.group_count = 0


def register() -> None:
    """Registers "hetcomm" with torch.distributed. May be called any number of times. Never
    raises."""
    global _failure
    try:
        if not dist.is_available() or BACKEND in dist.Backend.backend_list:
            return
        defaults = dict(dist.Backend.default_device_backend_map)
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=list(DEVICES))
        # A program that names no backend must get the same one as without hetcomm.
        dist.Backend.default_device_backend_map.clear()
        dist.Backend.default_device_backend_map.update(defaults)
    except Exception as error:  # the import of PyTorch must not fail
        _failure = error
        warnings.warn(f"hetcomm could not be registered with torch.distributed: {error}", stacklevel=2)


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Works like torch.distributed.monitored_barrier, which supports only Gloo.

    Rank 0 raises an error if a rank does not arrive within ``timeout``. The error names the first
    missing rank, or all of them with ``wait_all_ranks``. A number as ``timeout`` means seconds, and
    None means the group's timeout. Does nothing if this process is not a member of the group.
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
    """Returns the :class:`hetcomm.Communicator` of a process group, with the same ranks as the
    group.

    If the group's backend for the CPU is hetcomm, this is the group's own communicator, which ends
    with the group. For another group, the first call creates a communicator through PyTorch's
    default store. All ranks of the group must make that call.
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
    """Returns the ranks of a communicator in PyTorch's default group, or None if the communicator
    does not come from :func:`communicator`."""
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
    # The store may outlive the group, and another group with the same name may follow. The number
    # distinguishes them. It is the same on all ranks.
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
    except ImportError:  # not built for this PyTorch version, so device tensors are rejected
        shared = None
    own = hetcomm.Context(thread=True) if shared is None else (
        hetcomm.Context._borrow(shared.address, shared))
    made = hetcomm.Communicator.from_store(
        own, rank, size, put=store.set, get=get, name=group.group_name
    )
    if shared is not None:
        _contexts[made] = shared
    # Closes the communicator when the group is destroyed. Otherwise the plans that redistribute()
    # caches would keep it alive forever.
    weakref.finalize(group, _close, made).atexit = False
    return made


_made: dict[str, int] = {}

# For each communicator, the context with which tensors on devices are registered for its calls.
_contexts: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

def device_array(array: Any, communicator: Any) -> Any:
    """Wraps a contiguous array on a PyTorch device for calls of ``communicator``, its queues and
    plans. ``communicator`` must come from :func:`communicator`.

    ``array`` is a tensor, or an array of another library with DLPack or
    ``__cuda_array_interface__``. On CUDA and ROCm, PyTorch gets the stream from that library. On
    other devices, wait for the array's contents before this call. Operations on the array start
    when the current stream of its device has reached this call. Use the data only after the
    requests of these operations have ended. The result keeps the array alive.
    """
    return _device_array(array, context_of(communicator))


def _device_array(array: Any, context: Any) -> Any:
    import hetcomm

    tensor = array if isinstance(array, torch.Tensor) else _tensor_of(array)
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise BufferError("the tensor is not contiguous: use contiguous(), resolve_conj(), resolve_neg()")
    if tensor.requires_grad:
        raise BufferError("the tensor requires gradients: use detach()")
    if tensor.numel() == 0:
        return torch.empty(0, dtype=tensor.dtype, device="cpu")  # it has no memory to register
    named = context.name(tensor)
    type_name = str(tensor.dtype).removeprefix("torch.")
    return hetcomm._core.DeviceArray(named.memory, named.bytes, type_name, named.stream, named)


def device_index(device: torch.device | str | int, communicator: Any) -> int:
    """Returns the number of a PyTorch device of this rank in pipeline plans, for ranks of
    ``communicator``, which must come from :func:`communicator`. 0 is the CPU. A device gets its
    number on first use, so on a rank that uses only one device, its number is 1."""
    like = torch.empty(0, device=device)
    return 0 if like.device.type == "cpu" else context_of(communicator).index(like)


def context_of(communicator: Any) -> Any:
    """Returns the context with which tensors on devices are registered for ``communicator``."""
    context = _contexts.get(communicator)
    if context is None:
        raise ValueError("tensors on devices need a communicator of hetcomm.torch.communicator()")
    return context


def _tensor_of(array: Any) -> torch.Tensor:
    """Returns a tensor of another library's memory. If that library exposes its stream to PyTorch,
    as with CUDA and ROCm, the current stream waits for the work that produces the contents."""
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
    except Exception as error:  # no caller can handle it
        warnings.warn(f"a communicator of a group that has gone was not closed: {error}", stacklevel=1)


def __getattr__(name: str) -> Any:
    # Loads the module for this PyTorch version only when a program uses these classes.
    if name in ("Options", "ProcessGroupHetcomm"):
        return getattr(_load(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register()
