"""Directories that outlive sandboxes."""

from __future__ import annotations

from typing import Any, List, Optional, Union

from .._models import Volume
from .._requests import segment, without_none
from .api import open_api


async def create(
    name: str,
    *,
    size_mib: Optional[int] = None,
    inodes: Optional[int] = None,
    shared: Optional[bool] = None,
    **connection: Any,
) -> Volume:
    """Makes a volume."""
    body = without_none({"name": name, "size_mib": size_mib, "inodes": inodes, "shared": shared})
    return Volume.of(await (await open_api(**connection)).ask("POST", "/v1/volumes", body))


async def get(volume: Union[Volume, str], **connection: Any) -> Volume:
    """A volume, by its name or id."""
    return Volume.of(await (await open_api(**connection)).ask("GET", f"/v1/volumes/{segment(_id(volume))}"))


async def list(**connection: Any) -> List[Volume]:
    """Those that there are."""
    answer = await (await open_api(**connection)).ask("GET", "/v1/volumes")
    return [Volume.of(volume) for volume in answer["volumes"]]


async def remove(volume: Union[Volume, str], **connection: Any) -> None:
    """Removes a volume that no sandbox uses."""
    await (await open_api(**connection)).ask("DELETE", f"/v1/volumes/{segment(_id(volume))}")


def _id(volume: Union[Volume, str]) -> str:
    return volume.volume_id if isinstance(volume, Volume) else volume
