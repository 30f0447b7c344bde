"""The precision family's fixes, applied to a script: which line each adds or changes."""

from __future__ import annotations

from textwrap import dedent

import pytest
from edit_sources import FILE, changed, line_of
from scene_builder import check, gpu, loader, model, rank, run, run_case, scene

from gpuwatch.diagnosis.finding import Edit

SCRIPT = dedent(
    """
    import torch
    from torch.utils.data import DataLoader

    net = torch.nn.Conv2d(3, 8, 3).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=8)
    for images, labels in loader:
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()
    """
)
FACTS = {
    "conv_share": 0.9,
    "matmul_share": 0.5,
    "compiled": False,
    "deterministic": False,
    "cudnn_benchmark": False,
    "float32_matmul_precision": "highest",
    "optimizer": "AdamW",
    "optimizer_fused": False,
    "optimizer_file": FILE,
    "optimizer_line": line_of(SCRIPT, "AdamW"),
    "backward_file": FILE,
    "backward_line": line_of(SCRIPT, "loss.backward()"),
}
IN_FLOAT32, IN_16_BITS = {"autocast": False}, {"autocast": True, "channels_last": False}


def edit_of(rule: str, precision: dict[str, bool]) -> Edit:
    facts = {"model": model(**(FACTS | precision)), "torch": "2.13.0"}
    looked = loader(file=FILE, batches_inspected=5, batch_shapes=1)
    trained = run(rank(gap=0.0, optimizer_share=0.2, loader=looked, facts=facts))
    draft = check(rule, run_case(scene(trained, gpus=[gpu(utilization=98, power=300)])))
    assert draft is not None and draft.fix is not None and draft.fix.edit is not None
    return draft.fix.edit


@pytest.mark.parametrize(
    ("rule", "precision", "added"),
    [
        ("channels-last-off", IN_16_BITS, "net.to(memory_format=torch.channels_last)"),
        ("optimizer-unfused", IN_16_BITS, "optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)"),
        ("cudnn-benchmark", IN_16_BITS, "torch.backends.cudnn.benchmark = True"),
        ("tf32-off", IN_FLOAT32, 'torch.set_float32_matmul_precision("high")'),
        ("compile-off", IN_FLOAT32, "net.compile()"),
        ("amp-off", IN_FLOAT32, 'with torch.autocast(device_type="cuda", dtype=torch.bfloat16):'),
    ],
)
def test_the_fix_is_a_patch_of_the_script(rule: str, precision: dict[str, bool], added: str) -> None:
    lines = changed(edit_of(rule, precision), SCRIPT)
    assert any(line.startswith("+") and line[1:].strip() == added for line in lines)
