"""Pictures of MuJoCo scenes: which OpenGL is used, and a renderer that is fast in software."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plugrl.errors import MissingDependency

if TYPE_CHECKING:
    import mujoco

VARIABLE = "MUJOCO_GL"
_LIBRARIES = ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")
_OFF = ("disable", "disabled", "off", "false", "0")
_UPSIDE_DOWN = frozenset({"corner", "corner2", "corner3", "corner4"})
"""Cameras that Meta-World mounts upside down; their pictures are turned."""

_MISSING = (
    "Pictures of Meta-World need OpenGL in software, and libOSMesa is not on this machine. Install it "
    "(Debian, Ubuntu: apt-get install libosmesa6), or set MUJOCO_GL=egl where there is a GPU. Without main_camera, "
    "wrist_camera and extra_cameras the environment gives states and needs neither."
)


def has_osmesa() -> bool:
    """Whether Mesa's off-screen library can be loaded."""
    for name in _LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


def import_mujoco(pictures: bool) -> Any:
    """Import mujoco with an OpenGL that works here and return it.

    MuJoCo takes its OpenGL from ``MUJOCO_GL`` when it is first imported. Unset, it is software rendering where that is
    installed. Raises MissingDependency when pictures are wanted and there is none; states need none.
    """
    asked = os.environ.get(VARIABLE, "").lower().strip()
    chosen = asked or ("osmesa" if has_osmesa() else "disable")
    if chosen == "osmesa" and not has_osmesa():
        chosen = "disable"
    if pictures and chosen in _OFF:
        raise MissingDependency(_MISSING)
    if "mujoco" not in sys.modules:
        os.environ[VARIABLE] = chosen
        try:
            import mujoco
        finally:
            if asked:
                os.environ[VARIABLE] = asked
            else:
                del os.environ[VARIABLE]
    import mujoco

    if pictures and not hasattr(mujoco, "GLContext"):
        raise MissingDependency(
            "mujoco was imported without OpenGL before the environment was built, so it cannot render pictures. Set "
            "MUJOCO_GL=osmesa (or egl) for the process, or give the environment processes of its own: processes=1."
        )
    return mujoco


class Renderer:
    """Renders square pictures of scenes that were built from one model description.

    Args:
        model: any of them; textures and meshes are taken from it.
        size: height and width.
        full: with shadows, reflections and smoothed edges.
    """

    def __init__(self, model: mujoco.MjModel, size: int, full: bool) -> None:
        mujoco = import_mujoco(pictures=True)
        self._mujoco, self.size = mujoco, size
        if not full:
            model.vis.quality.offsamples = 0
            model.vis.quality.shadowsize = 0
        model.vis.global_.offwidth = max(size, model.vis.global_.offwidth)
        model.vis.global_.offheight = max(size, model.vis.global_.offheight)
        self._gl: Any = mujoco.GLContext(size, size)
        self._gl.make_current()
        self._scene = mujoco.MjvScene(model, maxgeom=2000)
        if not full:
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                self._scene.flags[flag] = 0
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._option, self._camera = mujoco.MjvOption(), mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._window = mujoco.MjrRect(0, 0, size, size)

    def picture(self, model: mujoco.MjModel, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """Return what a camera sees, [size, size, 3], the right way up."""
        mujoco = self._mujoco
        self._gl.make_current()
        self._camera.fixedcamid = model.camera(camera).id
        mujoco.mjv_updateScene(model, data, self._option, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene)
        mujoco.mjr_render(self._window, self._scene, self._context)
        pixels = np.empty((self.size, self.size, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(pixels, None, self._window, self._context)
        return pixels[:, ::-1] if camera in _UPSIDE_DOWN else pixels[::-1]

    def close(self) -> None:
        """Free the context; calling it again does nothing."""
        if self._gl is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
            self._gl = None
