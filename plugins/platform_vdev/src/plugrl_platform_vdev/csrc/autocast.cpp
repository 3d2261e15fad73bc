namespace vdev {
void register_autocast() {}
}
