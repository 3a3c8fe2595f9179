"""A stand-in for an accelerator: importing this gives torch a device type named "standin".

Its memory cannot be touched by the CPU, its streams are threads that nothing synchronises by
itself, and freed memory is poisoned and used again at once. The module is torch.standin too; the
functions with an underscore are for tests.
"""

import sys

import torch

try:
    from . import _standin
except ImportError:
    import _standin

_TYPE = "standin"

torch.utils.rename_privateuse1_backend(_TYPE)
torch._register_device_module(_TYPE, sys.modules[__name__])
torch.utils.generate_methods_for_privateuse1_backend(
    for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True)

Event = torch.Event
Stream = torch.Stream
default_generators = tuple(_standin.default_generator(i) for i in range(_standin.devices))


def _index(device=None):
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device if device >= 0 else current_device()
    index = torch.device(device).index
    return current_device() if index is None else index


def is_available():
    return True


def is_initialized():
    return True


def init():
    pass


_lazy_init = init


def _is_in_bad_fork():
    return False


def device_count():
    return _standin.devices


def current_device():
    return torch.accelerator.current_device_index()


def set_device(device):
    torch.accelerator.set_device_index(_index(device))


def synchronize(device=None):
    torch.accelerator.synchronize(_index(device))


def current_stream(device=None):
    return torch.accelerator.current_stream(_index(device))


def default_stream(device=None):
    kind = int(torch._C._autograd.DeviceType.PrivateUse1)
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=kind)


def set_stream(stream):
    if stream is not None:
        torch.accelerator.set_stream(stream)


class device:
    """Makes a device the current one within a with statement."""

    def __init__(self, device):
        self.index = _index(device)

    def __enter__(self):
        self.before = current_device()
        set_device(self.index)

    def __exit__(self, *_):
        set_device(self.before)


class stream:
    """Makes a stream and its device the current ones within a with statement."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        if self.stream is not None:
            self.device = current_device()
            self.before = current_stream(self.stream.device)
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *_):
        if self.stream is not None:
            set_stream(self.before)
            set_device(self.device)


def manual_seed(seed):
    default_generators[current_device()].manual_seed(seed)


def manual_seed_all(seed):
    for generator in default_generators:
        generator.manual_seed(seed)


def seed():
    return default_generators[current_device()].seed()


def initial_seed():
    return default_generators[current_device()].initial_seed()


def get_rng_state(device=_TYPE):
    return default_generators[_index(device)].get_state()


def set_rng_state(new_state, device=_TYPE):
    default_generators[_index(device)].set_state(new_state)


def get_amp_supported_dtype():
    return [torch.float16, torch.bfloat16]


def empty_cache():
    torch.accelerator.empty_cache()


def memory_stats(device=None):
    return torch.accelerator.memory_stats(_index(device))


def memory_allocated(device=None):
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device=None):
    return torch.accelerator.max_memory_allocated(_index(device))


def memory_reserved(device=None):
    return torch.accelerator.memory_reserved(_index(device))


def max_memory_reserved(device=None):
    return torch.accelerator.max_memory_reserved(_index(device))


def reset_peak_memory_stats(device=None):
    torch.accelerator.reset_peak_memory_stats(_index(device))


def mem_get_info(device=None):
    return torch.accelerator.get_memory_info(_index(device))


def get_device_name(device=None):
    return f"{_TYPE}:{_index(device)}"


def get_device_capability(device=None):
    return torch.accelerator.get_device_capability(_index(device))


def _sleep(milliseconds):
    """Puts a sleep into the current stream."""
    _standin.sleep(milliseconds)


def _set_copy_rate(bytes_per_second):
    """Limits the copies between the host and a device and between devices; 0 is no limit."""
    _standin.set_copy_rate(bytes_per_second)


def _set_jitter(max_microseconds):
    """Makes each task of a stream wait a random time before it runs."""
    _standin.set_jitter(max_microseconds)


def _set_lenient(lenient):
    """Treats freed memory as CUDA does: pinned memory is kept until its copies are done, and memory of
    the device is poisoned when it is used again, not at once."""
    _standin.set_lenient(lenient)


def _pinned_bytes():
    return _standin.pinned_bytes()


def _fail_copies(after, sticky):
    """Makes a copy raise after so many others, and, if sticky, every later call of the device."""
    _standin.fail_copies(after, sticky)


def _fail_copies_later(after):
    """Makes a copy fail in its stream after so many others; its events and waits then raise."""
    _standin.fail_copies_later(after)


def _heal():
    """Waits for all streams and forgets all faults."""
    _standin.heal()


def _counts():
    return _standin.counts()
