"""One differentiable AlltoAll in flight: started at once, waited for where its result is used, in both directions.

TorchRec's PooledEmbeddingsAllToAll joins what it receives into a matrix right away; the steps of SPTT need what was
received as it is, which is also one copy less.
"""

import torch
import torch.distributed as dist
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.types import Awaitable, QuantizedCommCodec


class AllToAll(Awaitable[torch.Tensor]):
    """Sends a part of a flat tensor to each rank of a group; wait() gives the parts received, one after the other.

    The way back does the same with the gradient and divides it by `divide_gradient`.

    Args:
        send: flat (sum of send_sizes,).
        send_sizes, receive_sizes: numbers for and from each rank of the group.
        group: a group of one rank sends nothing.
        codec: number format on the wire, forward and backward; None: as they are.
        divide_gradient: what the gradient is divided by when it has come back.
    """

    def __init__(
        self,
        send: torch.Tensor,
        send_sizes: list[int],
        receive_sizes: list[int],
        group: dist.ProcessGroup,
        codec: QCommsConfig | None = None,
        divide_gradient: float = 1,
    ) -> None:
        super().__init__()
        self._sizes = send_sizes, receive_sizes
        self._group = group
        self._packing = _packing(codec)
        self._divide_gradient = divide_gradient
        self._flight: _Flight | None = None
        self._token = _Send.apply(send, self)

    def _wait_impl(self) -> torch.Tensor:
        token, self._token = self._token, None
        return _Receive.apply(token, self)

    def _start(self, tensor: torch.Tensor, backward: bool) -> None:
        send_sizes, receive_sizes = self._sizes[::-1] if backward else self._sizes
        self._flight = _Flight(tensor, send_sizes, receive_sizes, self._group, *self._packing[backward])

    def _land(self) -> torch.Tensor:
        flight, self._flight = self._flight, None
        return flight.wait()


class _Send(torch.autograd.Function):
    """Starts the exchange on the way forward, ends that of the gradient on the way back."""

    @staticmethod
    def forward(ctx, send, exchange):
        ctx.exchange = exchange
        exchange._start(send.detach(), backward=False)
        return send.new_empty(0)

    @staticmethod
    def backward(ctx, _):
        exchange = ctx.exchange
        gradient = exchange._land()
        if exchange._divide_gradient != 1:
            received = exchange._group.size() > 1  # else it is autograd's own tensor, which others may read
            divide = gradient.div_ if received else gradient.div
            gradient = divide(exchange._divide_gradient)
        return gradient, None


class _Receive(torch.autograd.Function):
    """Ends the exchange on the way forward, starts that of the gradient on the way back."""

    @staticmethod
    def forward(ctx, token, exchange):
        ctx.exchange = exchange
        return exchange._land()

    @staticmethod
    def backward(ctx, gradient):
        ctx.exchange._start(gradient.contiguous(), backward=True)
        return gradient.new_empty(0), None


class _Flight:
    """The collective itself, with numbers packed for the wire."""

    def __init__(
        self,
        tensor: torch.Tensor,
        send_sizes: list[int],
        receive_sizes: list[int],
        group: dist.ProcessGroup,
        codec: QuantizedCommCodec | None,
        row: int,
    ) -> None:
        self.codec, self.sizes, self.row = codec, receive_sizes, row
        if group.size() == 1:
            self.work, self.received = None, tensor
            return
        if codec is not None:
            self.context = codec.create_context()
            # FBGEMM's codec for fp8 wants a matrix
            tensor = codec.encode(_padded(tensor, send_sizes, row).view(1, -1), self.context).view(-1)
            send_sizes, receive_sizes = (
                [codec.calc_quantized_size(_whole_rows(size, row), self.context) for size in sizes]
                for sizes in (send_sizes, receive_sizes)
            )
        self.received = tensor.new_empty(sum(receive_sizes))
        self.sent = tensor  # kept alive until it has left
        self.work = dist.all_to_all_single(self.received, tensor, receive_sizes, send_sizes, group, async_op=True)

    def wait(self) -> torch.Tensor:
        if self.work is None:
            return self.received
        self.work.wait()
        self.sent = None
        if self.codec is None:
            return self.received
        numbers = self.codec.decode(self.received.view(1, -1), self.context).view(-1)
        return _unpadded(numbers, self.sizes, self.row)


def _packing(config: QCommsConfig | None) -> list[tuple[QuantizedCommCodec | None, int]]:
    """Codec and numbers a row, on the way forward and on the way back."""
    if config is None:
        return [(None, 1), (None, 1)]
    codecs = get_qcomm_codecs(config)
    precisions = config.forward_precision, config.backward_precision
    return [
        (codec, _row(codec, kind)) for codec, kind in zip((codecs.forward, codecs.backward), precisions, strict=True)
    ]


def _row(codec: QuantizedCommCodec, precision: CommType) -> int:
    """Numbers that share a scale on the wire: parts are padded to a whole number of such rows."""
    if precision not in (CommType.FP8, CommType.INT8, CommType.MX4):
        return 1
    return max(1, codec.create_context().row_dim)  # fp8 without rows says -1


def _whole_rows(size: int, row: int) -> int:
    return -(-size // row) * row


def _padded(flat: torch.Tensor, sizes: list[int], row: int) -> torch.Tensor:
    if all(size % row == 0 for size in sizes):
        return flat
    parts = [torch.nn.functional.pad(part, (0, -len(part) % row)) for part in flat.split(sizes)]
    return torch.cat(parts)


def _unpadded(flat: torch.Tensor, sizes: list[int], row: int) -> torch.Tensor:
    if all(size % row == 0 for size in sizes):
        return flat
    parts = flat.split([_whole_rows(size, row) for size in sizes])
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
