"""The jobs: one module and one public function each."""
