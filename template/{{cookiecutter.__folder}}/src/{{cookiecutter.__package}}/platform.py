"""How torch, Ray and collectives reach the devices; what is not said here is answered by torch itself."""

from __future__ import annotations

from plugrl.platforms.generic import TorchAcceleratorPlatform


class {{ cookiecutter.__class }}Platform(TorchAcceleratorPlatform):
    """{{ cookiecutter.summary }}."""

{% if cookiecutter.torch_extension %}
    extension = "{{ cookiecutter.torch_extension }}"
{% endif %}
{% if cookiecutter.smi_command %}
    smi_command = "{{ cookiecutter.smi_command }}"
{% endif %}
{% if cookiecutter.torch_extension or cookiecutter.smi_command %}

{% endif %}
    @property
    def device_name(self) -> str:
        """``"{{ cookiecutter.device_type }}"``."""
        return "{{ cookiecutter.device_type }}"

    @property
    def vendor_name(self) -> str:
        """``"{{ cookiecutter.vendor }}"``."""
        return "{{ cookiecutter.vendor }}"

    def communication_backend_name(self) -> str:
        """``"{{ cookiecutter.comm_backend }}"``."""
        return "{{ cookiecutter.comm_backend }}"

    def visible_devices_envvar(self) -> str:
        """``"{{ cookiecutter.visible_devices_env }}"``."""
        return "{{ cookiecutter.visible_devices_env }}"

    def ray_resource_name(self) -> str:
        """``"{{ cookiecutter.ray_resource }}"``{{ ', built into Ray' if cookiecutter.ray_resource == 'GPU' else ', a resource of its own' }}."""
        return "{{ cookiecutter.ray_resource }}"
{% if cookiecutter.cuda_compatible %}

    def generic_engine_vendor(self) -> str:
        """``"nvidia"``: its engines run here too, where there is none of {{ cookiecutter.vendor }} itself."""
        return "nvidia"
{% endif %}

    # TODO({{ cookiecutter.vendor }}): override what differs from plugrl.platforms.generic, such as
    # is_ipc_supported() where processes can share device memory, forward_env_vars() for variables
    # of the SDK that workers need, rollout_env_vars(), ray_noset_envvars(), set_allocator_settings().
