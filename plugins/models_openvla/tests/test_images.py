"""Camera images as the vision towers get them."""

from __future__ import annotations

import math

import pytest
import torch

from plugrl.errors import ConfigError, DataError
from plugrl.testing.reference import Case, cases
from plugrl_models_openvla.images import IMAGENET, UNIT, ImagePlan, TowerImage, resize


def plan(size: int = 4, **keys: object) -> ImagePlan:
    return ImagePlan((TowerImage(size, *IMAGENET), TowerImage(size, *UNIT)), **keys)


def ramp(*shape: int) -> torch.Tensor:
    return (torch.arange(math.prod(shape)) * 7 % 256).to(torch.uint8).view(shape)


@pytest.mark.parametrize("case", cases("normalise_pixel"))
def test_one_colour_is_normalised_for_both_towers(case: Case) -> None:
    image = torch.tensor(case.given["rgb"], dtype=torch.uint8).expand(1, 6, 5, 3)
    for strategy in ("resize-naive", "resize-crop"):
        pixels = plan(strategy=strategy, center_crop=True)(image)
        assert pixels.shape == (1, 6, 4, 4)
        case.check({"channels": pixels[0, :, 2, 1]})


@pytest.mark.parametrize("case", cases("resize"))
def test_resizing_agrees_with_the_reference(case: Case) -> None:
    image = torch.tensor(case.given["image"], dtype=torch.uint8).movedim(-1, 0)
    case.check({"image": resize(image[None], case.given["size"], case.given["size"])[0].movedim(0, -1)})


def test_cameras_follow_each_other_on_the_channels() -> None:
    images = ramp(2, 3, 8, 6, 3)
    together = plan()(images)
    assert together.shape == (2, 18, 4, 4)
    for camera in range(3):
        assert torch.equal(together[:, 6 * camera : 6 * camera + 6], plan()(images[:, camera]))


def test_the_other_strategies_keep_proportions() -> None:
    wide = torch.zeros(1, 4, 8, 3, dtype=torch.uint8)
    wide[:, :, 2:6] = 200
    cropped = ImagePlan((TowerImage(4, *UNIT),), "resize-crop")(wide)
    assert torch.allclose(cropped, torch.full_like(cropped, 200 / 255 * 2 - 1)), "the centre is all that is left"
    boxed = ImagePlan((TowerImage(8, *IMAGENET),), "letterbox")(wide + 50)
    border = torch.tensor([int(mean * 255) for mean in IMAGENET[0]]) / 255
    expected = (border - torch.tensor(IMAGENET[0])) / torch.tensor(IMAGENET[1])
    torch.testing.assert_close(boxed[0, :, 0, 0], expected)
    torch.testing.assert_close(boxed[0, :, -1, 3], expected)
    assert boxed[0, 0, 4, 4] > boxed[0, 0, 4, 0], "the picture itself is in the middle"


def test_the_centre_crop_shows_nine_tenths_of_the_area() -> None:
    size = 101
    image = (torch.arange(size) * 2).to(torch.uint8).view(1, 1, -1, 1).expand(1, size, size, 3)
    row = (plan(size, center_crop=True)(image)[0, 3, 50] + 1) / 2 * 255 / 2
    side = (row[-1] - row[0]).item() / (size - 1)
    assert side**2 == pytest.approx(0.9, abs=0.01)
    assert row[50].item() == pytest.approx(50), "it is taken around the middle"


def test_what_is_no_image_is_refused() -> None:
    for wrong in (torch.zeros(1, 4, 4, 3), ramp(1, 3, 4, 4), ramp(4, 4, 3)):
        with pytest.raises(DataError, match="images must be uint8 of shape"):
            plan()(wrong)
    with pytest.raises(ConfigError, match="image_resize_strategy: 'fill' is none of letterbox, resize-crop"):
        plan(strategy="fill")
    with pytest.raises(ConfigError, match="image_sizes: all vision towers"):
        ImagePlan((TowerImage(4, *UNIT), TowerImage(5, *UNIT)))


def test_prepared_images_are_bytes_that_are_normalised_later() -> None:
    images = ramp(2, 2, 8, 6, 3)
    for strategy, channels in (("resize-naive", 6), ("resize-crop", 6), ("letterbox", 12)):
        prepared = plan(strategy=strategy).prepare(images)
        assert prepared.dtype == torch.uint8 and prepared.shape == (2, channels, 4, 4)
        pixels = plan(strategy=strategy).normalise(prepared)
        assert pixels.shape == (2, 12, 4, 4) and torch.equal(pixels, plan(strategy=strategy)(images))
    first = plan(strategy="letterbox")(images[:, 0])
    assert torch.equal(pixels[:, :6], first), "the channels of a camera stand together"
